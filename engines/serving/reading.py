"""A request's body, as far as the limits let it come."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from .browsers import check_json
from .problems import HttpRefusal
from .settings import Limits


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
