"""What keeps other sites' pages from using a server through a visitor's browser.

A page of any site can send requests to a server on its visitor's machine. It cannot read the answers without CORS, but
it can make the server work, and a site whose name resolves to the visitor's own machine (DNS rebinding) can read them.
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
_OF_CURL = "application/x-www-form-urlencoded"  # what `curl -d` and urllib say of any body


@dataclass(frozen=True)
class AllowedHosts:
    """The names by which requests may call the server (their ``Host``). With ``any_address``, IP addresses as well."""

    names: frozenset[str]
    any_address: bool

    def check(self, headers: Headers) -> None:
        """Raise ``HttpRefusal`` for a request by another name. One without a name, as HTTP/1.0 has them, passes."""
        for host in headers.getlist("host"):
            name = _name(host)
            if name and name not in self.names and not (self.any_address and _address(name)):
                raise HttpRefusal(
                    403,
                    f"this server is not called {name[:100]}; fix: call it by one of "
                    f"{', '.join(sorted(self.names))}, or start it with --allowed-host NAME",
                    code="host_not_allowed",
                )


def allowed_hosts(host: str, address: str, names: Collection[str]) -> AllowedHosts | None:
    """Return the names of a server that listens on ``address``, the one of ``host``; None where any name will do.

    On a loopback address, those are the names of this machine and ``names``: who calls it by another was led there.
    """
    is_loopback = (found := _address(address)) is not None and found.is_loopback
    if not is_loopback and not names:
        return None
    return AllowedHosts(frozenset({*_LOOPBACK, *map(_name, (host, address, *names))}), any_address=not is_loopback)


def check_origin(origin: str) -> str:
    """Return an origin that a browser could send, or ``*``. Raises ``UsageError``."""
    try:
        parts = urlsplit(origin)
        bare = f"{parts.scheme}://{parts.netloc}".lower()
        is_origin = bool(parts.scheme and parts.hostname) and bare == origin.lower() and "@" not in bare
    except ValueError:
        is_origin = False
    if origin == "*" or is_origin:
        return origin.lower()
    raise UsageError(
        f"--cors-origin {origin} is not an origin",
        why="a browser sends the scheme, the host, and the port unless it is the usual one",
        fix="for example https://example.com or http://localhost:3000, without a path; * is any site",
    )


def check_host_name(name: str) -> str:
    """Return a name that a ``Host`` header could have. Raises ``UsageError``."""
    if not name or name != name.strip() or "/" in name or (":" in name and _address(_name(name)) is None):
        raise UsageError(
            f"--allowed-host {name} is not a host name",
            why="it is compared with the Host header of requests, without its port",
            fix="for example ai.example.com or 192.0.2.7",
        )
    return name


def check_json(headers: Headers, *, any_type: bool = False) -> None:
    """Raise ``HttpRefusal`` for a body that does not say that it is JSON.

    A browser asks the server before it sends JSON for another site's page, and sends other bodies without asking. So
    ``any_type`` of body, and what curl sends unless told otherwise, is for requests that no browser sent.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    from_browser = "origin" in headers or "sec-fetch-site" in headers
    if not from_browser and (any_type or kind in ("", _OF_CURL)):
        return
    raise HttpRefusal(
        415,
        f"the body is {kind[:100] or 'of no type'}; fix: send JSON, with the header Content-Type: application/json",
        code="unsupported_media_type",
    )


def _name(host: str) -> str:
    """A host as it is compared: lower case, without port and brackets."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name if name.count(":") > 1 else name.partition(":")[0]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
