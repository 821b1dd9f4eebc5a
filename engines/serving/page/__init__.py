"""The chat page at ``/``: one self-contained file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

_OWN = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'"


@cache
def _page() -> tuple[bytes, str]:
    """Return the page and a content security policy that allows only its own script and style."""
    content = files(__name__).joinpath("index.html").read_bytes()
    sources = []
    for tag in (b"script", b"style"):
        (inside,) = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), content, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside).digest()).decode()
        sources.append(f"{tag.decode()}-src 'sha256-{digest}'")
    return (
        content,
        "; ".join((_OWN, *sources)),
    )


async def page(request: Request) -> Response:
    """``GET /``."""
    del request
    content, policy = _page()
    return Response(content, media_type="text/html", headers={"Content-Security-Policy": policy})
