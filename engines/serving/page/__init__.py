"""The chat page at ``/``, and its files below ``/page/``. They load nothing from elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import html
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from ..problems import HttpRefusal
from ..state import ServerState

_INDEX = "index.html"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# With Trusted Types, a browser refuses to read any text as HTML or as a script, whatever the page's scripts do.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'self'; "
    "form-action 'none'; frame-ancestors 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass(frozen=True)
class PageFile:
    """One file as it is sent: its content, compressed too, its media type, and a tag that changes with it."""

    content: bytes
    compressed: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> PageFile:
        """Return the file of this name with this content."""
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, gzip.compress(content, mtime=0), _TYPES[name[name.rindex(".") :]], tag)

    def response(self, request: Request) -> Response:
        """Return the file, or that the browser's copy is still the same. Browsers ask each time."""
        headers = {
            "Cache-Control": "no-cache",
            "Content-Security-Policy": _POLICY,
            "ETag": self.tag,
            "Referrer-Policy": "no-referrer",
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
        }
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.content, media_type=self.media_type, headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(self.compressed, media_type=self.media_type, headers=headers)


@cache
def page_files() -> dict[str, PageFile]:
    """Return all files of the page by their path below ``/page/``."""
    return {name: PageFile.of(name, each.read_bytes()) for name, each in _below(files(__name__), "")}


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        name = f"{prefix}{each.name}"
        if each.is_dir():
            yield from _below(each, f"{name}/")
        elif name.endswith(tuple(_TYPES)):
            yield name, each


@cache
def _index(root: str) -> PageFile:
    """Return the page for a server below the path ``root``. Its references hold without a slash at the URL's end."""
    content = page_files()[_INDEX].content
    base = f'<base href="{html.escape(root)}/">'.encode() if root else b""
    return PageFile.of(_INDEX, content.replace(b"<head>", b"<head>" + base, 1))


async def page(request: Request) -> Response:
    """``GET /``."""
    return _index(ServerState.of(request).settings.root_path).response(request)


async def page_file(request: Request) -> Response:
    """``GET /page/NAME``."""
    name = request.path_params["name"]
    if name == _INDEX or name not in page_files():
        raise HttpRefusal(404, f"{request.url.path[:200]} does not exist")
    return page_files()[name].response(request)
