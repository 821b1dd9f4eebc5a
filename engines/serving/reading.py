"""Reads a request body within the limits and parses it as a type. Errors name the path of the invalid value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from .browsers import check_json
from .problems import HttpRefusal
from .settings import Limits

Body = TypeVar("Body", bound=Struct)


async def read_body(request: Request, limits: Limits, *, any_type: bool = False) -> bytes:
    """Return the whole body. Raises ``HttpRefusal`` if it is too long, arrives too slowly, or is not JSON.

    ``any_type`` accepts other content types for JSON.
    """
    check_json(request.headers, any_type=any_type)
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limits.body_bytes:
        raise _too_long(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise _too_long(limits)
                parts.append(part)
    except TimeoutError:
        raise HttpRefusal(408, f"the body did not arrive within {limits.body_seconds:g} seconds") from None
    except ClientDisconnect:
        raise HttpRefusal(400, "the client disconnected before its body had arrived") from None
    return b"".join(parts)


def _too_long(limits: Limits) -> HttpRefusal:
    return HttpRefusal(
        413,
        f"the body exceeds the limit of {limits.body_bytes} bytes; fix: send less, "
        "or start the server with a larger --max-body-bytes",
    )


def parse_body(
    raw: bytes, kind: type[Body], select: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields
) -> Body:
    """Parse the body as ``kind``; ``select`` picks the fields to use.

    Raises ``HttpRefusal`` for invalid JSON or an invalid value.
    """
    try:
        content = _decoded(raw, kind)
        return msgspec.convert(select(content) if isinstance(content, dict) else content, kind)
    except msgspec.ValidationError as error:
        message = str(error)
        _, at, path = message.partition(" - at `$")
        param = path.rstrip("`").lstrip(".") or None if at else None
        if "unknown field `" in message:
            param = message.split("unknown field `")[1].split("`")[0]
        if "required field `" in message:
            param = message.split("required field `")[1].split("`")[0]
        raise HttpRefusal(400, f"invalid request body: {message}", param=param) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HttpRefusal(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


def _decoded(raw: bytes, kind: type[Struct]) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:  # a number out of range of all types; decoding with the type gives its path
        return msgspec.json.decode(raw, type=kind)
