"""A request's body: as far as the limits let it come, and as a type; one that does not fit is refused with the path."""

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
    """The whole body. Raises ``HttpRefusal`` for one that is too long, takes too long to come, or is not JSON.

    ``any_type``: clients may say of JSON that it is something else.
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
        raise HttpRefusal(408, f"the body had not arrived after {limits.body_seconds:g} seconds") from None
    except ClientDisconnect:
        raise HttpRefusal(400, "the client went before its body had arrived") from None
    return b"".join(parts)


def _too_long(limits: Limits) -> HttpRefusal:
    return HttpRefusal(
        413,
        f"the body has more than the {limits.body_bytes} bytes that this server takes; send less, "
        "or start it with a larger --max-body-bytes",
    )


def parse_body(
    raw: bytes, kind: type[Body], select: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields
) -> Body:
    """Return the body as its type; ``select`` gives the fields of it that are acted on.

    Raises ``HttpRefusal`` for what is not valid JSON, or does not fit.
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
        raise HttpRefusal(400, f"the body does not fit: {message}", param=param) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HttpRefusal(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


def _decoded(raw: bytes, kind: type[Struct]) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:  # a number beyond all types, whose path is known to who knows the type
        return msgspec.json.decode(raw, type=kind)
