"""ASGI middleware for every request: request id, API key check, error responses and the access log."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...plugins.errors import PeagleError, UsageError
from .api_face import ApiFace, face_of, resolve_face
from .problems import HttpRefusal, shutting_down
from .state import ServerState

OPEN_PATHS = frozenset({"/", "/health", "/ping", "/metrics", "/load"})  # no key required: monitoring systems have none
PAGE_FILES = "/page/"  # below this path are the chat page's files, which require none either
ID_HEADERS = ("X-Request-Id", "Request-Id")  # of responses: Anthropic's clients read the second, and others the first
REQUEST_ID = "peagle.request_id"  # scope key
FIGURES = "peagle.figures"  # scope key: statistics of the generated text, for the log
REFUSAL = "peagle.refusal"  # scope key: the error of a request that was refused or whose stream failed
TOLERANCE = "peagle.acceptance_tolerance"  # scope key, set when acceptance was lossy
_LOG = logging.getLogger("peagle.serving")
_LONGEST_ID = 128
_IS_LINE = "peagle_is_line"  # set on a record whose message is already a JSON line


def check_api_key(key: str, name: str = "--api-key") -> str:
    """Return ``key`` if every client can send it in a header. Raises ``UsageError``, without the key, otherwise."""
    if not key.strip():
        raise UsageError(f"{name} is empty", why="an empty key protects nothing", fix="use a long random key")
    if not (key.isascii() and key.isprintable()) or key != key.strip():
        raise UsageError(
            f"{name} is not usable",
            why="an HTTP header can contain only printable ASCII characters, with no space at either end",
            fix="use letters and digits, such as the output of `openssl rand -hex 32`",
        )
    return key


class Access:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, started = Headers(scope=scope), time.perf_counter()
        scope["path"] = _path_below(self._state.settings.root_path, scope)
        scope[REQUEST_ID] = name = _request_id(headers)
        owner, face = resolve_face(scope, self._state.faces), face_of(scope)
        if owner is not None and scope["path"] not in OPEN_PATHS:
            self._state.metrics.count_request(owner)
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for header in ID_HEADERS:
                    MutableHeaders(scope=message)[header] = name
            await send(message)

        try:
            try:
                self._admit(scope["path"], headers)
                await self._app(scope, receive, send_named)
            except (Exception, asyncio.CancelledError) as error:
                is_end = isinstance(error, asyncio.CancelledError)
                if is_end and not self._state.drains:
                    raise
                scope[REFUSAL] = refusal = _refusal(error, name, face)
                self._state.metrics.refuse(refusal.status)
                if not status:
                    await face.response(refusal)(scope, receive, send_named)
                elif not is_end:  # a stream failed after its headers were sent; its events have reported the error
                    raise
        finally:
            lossy = {"lossy": True, "acceptance_tolerance": scope[TOLERANCE]} if TOLERANCE in scope else {}
            why = {"error": scope[REFUSAL].for_log()} if REFUSAL in scope else {}
            log("request", id=name, method=scope["method"], path=scope["path"], status=status,
                seconds=round(time.perf_counter() - started, 4), **why, **lossy, **scope.get(FIGURES, {}))  # fmt: skip

    def _admit(self, path: str, headers: Headers) -> None:
        if self._state.hosts is not None:
            self._state.hosts.check(headers)
        keys = self._state.settings.api_keys
        if not keys or path in OPEN_PATHS or path.startswith(PAGE_FILES):
            return
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        sent = [bearer.strip()] if kind.lower() == "bearer" else []
        sent += [headers["x-api-key"].strip()] if "x-api-key" in headers else []
        if not any(hmac.compare_digest(each.encode(), key.encode()) for each in sent for key in keys):
            raise HttpRefusal(
                401,
                "missing or invalid API key; fix: send a valid key as a bearer token, or in the header x-api-key",
                code="invalid_api_key",
            )


def _path_below(root: str, scope: Scope) -> str:
    """Return the path without the prefix ``root`` if a route has the rest: a proxy may have removed it already."""
    path: str = scope["path"]
    if not root or not f"{path}/".startswith(f"{root}/"):
        return path
    rest = path.removeprefix(root) or "/"
    is_known = any(route.matches({**scope, "path": rest})[0] is not Match.NONE for route in scope["app"].routes)
    return rest if is_known else path


def _refusal(error: BaseException, name: str, face: ApiFace) -> HttpRefusal:
    if isinstance(error, asyncio.CancelledError):
        return shutting_down()
    if isinstance(error, HttpRefusal | PeagleError):
        return face.refusal_of(error)
    _LOG.exception("request %s failed", name)
    return HttpRefusal(500, f"internal server error; the server log has details under request id {name}")


def _request_id(headers: Headers) -> str:
    """Return the client's request id if it is safe in headers and logs, else a new one."""
    request_id = headers.get("x-request-id", "")
    if 0 < len(request_id) <= _LONGEST_ID and request_id.isascii() and request_id.isprintable():
        return request_id
    return secrets.token_hex(8)


def log(event: str, **fields: Any) -> None:
    """Write one JSON log line with the time, the event and its fields."""
    _LOG.info("%s", _line(time.time(), event, fields), extra={_IS_LINE: True})


class JsonLines(logging.Formatter):
    """Formatter that writes every log record as one JSON line.

    Warnings of the engine and internal errors have their text in ``message``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line of a record."""
        if getattr(record, _IS_LINE, False):
            return record.getMessage()
        fields = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return _line(record.created, record.levelname.lower(), fields)


def _line(seconds: float, event: str, fields: Mapping[str, Any]) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    shown = {name: _as_utf8(value) if isinstance(value, str) else value for name, value in fields.items()}
    return msgspec.json.encode({"time": when, "event": event, **shown}).decode()


def _as_utf8(text: str) -> str:
    """Return a text with escapes in place of lone surrogates, which stand for bytes of a path that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()
