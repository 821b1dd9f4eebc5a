"""Reads a request body within the limits and parses it as a type. Errors name the path of the invalid value."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from .browsers import check_json
from .problems import HttpRefusal
from .settings import Limits

Body = TypeVar("Body", bound=Struct)
# An escape of half of a surrogate pair whose other half is missing; its backslash is not itself escaped.
_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = re.compile(rb"(?<!\\)(?:\\\\)*(%b(?!%b)|(?<!%b)%b)" % (_HIGH, _LOW, _HIGH, _LOW))


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
        raise HttpRefusal(400, "the client disconnected before the request body had arrived") from None
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
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise malformed(raw, error) from None


def parse_variant(value: Any, kinds: Mapping[str, type[Body]], path: str, default: str | None = None) -> Body:
    """Parse an object in a body whose ``type`` names one of ``kinds``; without a type, it is the ``default``.

    ``path`` is its path in the body. Fields with null count as absent, known or not: clients that send back parts of an
    answer add every field that their version of the API has. Raises ``HttpRefusal`` for another type or value.
    """
    name = value.get("type") if isinstance(value, dict) else None
    name = default if name is None and isinstance(value, dict) else name
    if not isinstance(name, str):
        raise HttpRefusal(400, f"{path} must be an object with a type", param=path)
    if name not in kinds:
        raise HttpRefusal(
            400,
            f"{path} has type {name[:100]!r}, which this server does not support; supported: {', '.join(kinds)}",
            param=path,
            code="unsupported_parameter",
        )
    try:
        return msgspec.convert(
            {key: each for key, each in value.items() if key != "type" and each is not None}, kinds[name]
        )
    except msgspec.ValidationError as error:
        raise _invalid(str(error), path) from None


def _invalid(message: str, prefix: str = "") -> HttpRefusal:
    """Return the refusal for a validation error of the value at ``prefix``."""
    problem, _, path = message.partition(" - at `$")
    path = (prefix + path.rstrip("`")).lstrip(".")
    param, field = path or None, re.search(r"(?:unknown|required) field `(.+?)`", problem)
    if field:
        param = f"{prefix}.{field[1]}" if prefix else field[1]
    suffix = f" - at `$.{path}`" if path else ""
    return HttpRefusal(400, f"invalid request body: {problem}{suffix}", param=param)


def _decoded(raw: bytes, kind: type[Struct]) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:  # a number out of range of all types; decoding with the type gives its path
        return msgspec.json.decode(raw, type=kind)


def malformed(raw: bytes, error: Exception) -> HttpRefusal:
    """Return the refusal for invalid JSON. The parser's ``error`` calls empty bodies and half pairs truncated."""
    message = f"the body is not valid JSON: {error}"
    if not raw.strip():
        message = "the body is empty; fix: send a JSON object"
    elif half := _HALF.search(raw):
        message = (
            f"the body is not valid JSON: {half[1].decode()} at byte {half.start(1)} is an unpaired surrogate; "
            "fix: split text only between characters"
        )
    return HttpRefusal(400, message, code="invalid_json")
