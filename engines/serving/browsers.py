"""Protection against cross-site requests from a visitor's browser.

A page of any site can send requests to a server on its visitor's machine. Without CORS it cannot read the responses,
but it can make the server work. A site whose name resolves to the visitor's own machine (DNS rebinding) can also read
them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from ...plugins.errors import UsageError
from .problems import HttpRefusal

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OF_CURL = "application/x-www-form-urlencoded"  # default content type of `curl -d` and urllib, whatever the body


@dataclass(frozen=True)
class AllowedHosts:
    """Values that requests may have in their ``Host`` header. ``any_address`` allows all IP addresses as well."""

    names: frozenset[str]
    any_address: bool

    def check(self, headers: Headers) -> None:
        """Raise ``HttpRefusal`` if the ``Host`` header is not allowed. Requests without one (HTTP/1.0) pass."""
        for host in headers.getlist("host"):
            name = _name(host)
            if name and name not in self.names and not (self.any_address and _address(name)):
                raise HttpRefusal(
                    403,
                    f"host {name[:100]} is not allowed; fix: use one of {', '.join(sorted(self.names))}, "
                    "or start the server with --allowed-host NAME",
                    code="host_not_allowed",
                )


def allowed_hosts(host: str, address: str, names: Collection[str]) -> AllowedHosts | None:
    """Return the allowed host names of a server that listens on ``address``, or None if any name is allowed.

    ``address`` is the resolved ``host``. On a loopback address, only the names of this machine and ``names`` are
    allowed, because any other name suggests DNS rebinding.
    """
    is_loopback = (found := _address(address)) is not None and found.is_loopback
    if not is_loopback and not names:
        return None
    return AllowedHosts(frozenset({*_LOOPBACK, *map(_name, (host, address, *names))}), any_address=not is_loopback)


def check_origin(origin: str) -> str:
    """Return ``origin`` if a browser could send it, or if it is ``*``. Raises ``UsageError`` otherwise."""
    try:
        parts = urlsplit(origin)
        bare = f"{parts.scheme}://{parts.netloc}".lower()
        is_origin = bool(parts.scheme and parts.hostname) and bare == origin.lower() and "@" not in bare
    except ValueError:
        is_origin = False
    if origin == "*" or is_origin:
        return origin.lower()
    raise UsageError(
        f"--cors-origin {origin} is not a valid origin",
        why="an origin is a scheme and a host, with the port if it is not the default",
        fix="use an origin such as https://example.com or http://localhost:3000, without a path; * allows any site",
    )


def check_root_path(path: str) -> str:
    """Return the prefix of all paths, without a slash at its end. Raises ``UsageError`` if it is not a path."""
    root = path.rstrip("/")
    if root and (not root.startswith("/") or any(each in root for each in "?# ")):
        raise UsageError(f"--root-path {path} is not a path", fix="use a path such as /llm")
    return root


def check_host_name(name: str) -> str:
    """Return ``name`` if it can occur in a ``Host`` header. Raises ``UsageError`` otherwise."""
    if not name or name != name.strip() or "/" in name or (":" in name and _address(_name(name)) is None):
        raise UsageError(
            f"--allowed-host {name} is not a host name",
            why="the name is compared with the Host header of requests, without the port",
            fix="use a name such as ai.example.com or 192.0.2.7",
        )
    return name


def check_json(headers: Headers, *, any_type: bool = False) -> None:
    """Raise ``HttpRefusal`` unless the content type is JSON.

    A browser asks the server before it sends JSON for another site's page, but sends other content types without
    asking. Therefore other types (``any_type``, and curl's default) are accepted only from requests that no browser
    sent.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    from_browser = "origin" in headers or "sec-fetch-site" in headers
    if not from_browser and (any_type or kind in ("", _OF_CURL)):
        return
    raise HttpRefusal(
        415,
        f"unsupported content type {kind[:100] or '(none)'}; fix: send JSON with Content-Type: application/json",
        code="unsupported_media_type",
    )


def _name(host: str) -> str:
    """Return a host in the form used for comparison: lower case, without port and brackets."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name if name.count(":") > 1 else name.partition(":")[0]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
