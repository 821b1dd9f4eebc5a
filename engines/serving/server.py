"""The HTTP server: it listens, answers requests, and on shutdown finishes those that run."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from ...plugins.errors import EnvironmentProblem, UsageError
from ..engine import Engine
from .access import log
from .app import create_app
from .browsers import allowed_hosts
from .settings import ServerSettings

KEEP_ALIVE_SECONDS = 30
TOLD_AGAIN_SECONDS = 10.0
FORMS_SECONDS = 1.0
_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Server:
    """An HTTP server in a thread of its own. After ``stop``, it finishes running requests and ends.

    ``port`` 0 picks a free port. Raises ``EnvironmentProblem`` if the address is in use or not local. To detect this
    before loading an engine, call ``bound`` and pass its result as ``address``.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        host: str = "127.0.0.1",
        port: int = 8000,
        address: socket.socket | None = None,
    ) -> None:
        self._socket = address or bound(host, port)
        hosts = allowed_hosts(host, self._socket.getsockname()[0], settings.allowed_hosts)
        self._app = create_app(engine, settings, hosts)
        self._state = self._app.state.server
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._error: Exception | None = None
        with _said(host, self.port):
            self._socket.listen(2048)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(settings.limits.drain_seconds)),
            )
        )
        self._thread = threading.Thread(target=self._answer, name="http", daemon=True)

    @property
    def url(self) -> str:
        """The server's URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Start answering requests."""
        self._thread.start()

    def stop(self, *, at_once: bool = False) -> None:
        """Refuse new requests; running ones have ``drain_seconds`` to finish, or are cancelled if ``at_once``."""
        self._state.drains = True
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or at_once

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the server has ended; return whether it has. Raises ``EnvironmentProblem`` if it failed."""
        self._thread.join(seconds)
        if self._error is not None:
            raise EnvironmentProblem(
                "the server stopped unexpectedly",
                why=f"{type(self._error).__name__}: {self._error}",
                fix="start it again; if too many files are open, raise the limit first (ulimit -n)",
            ) from self._error
        return not self._thread.is_alive()

    def _answer(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                runner.get_loop().set_exception_handler(LoopErrors())
                runner.run(self._serve())
        except Exception as error:  # such as no file descriptors left; ``wait`` reports it
            self._error = error

    async def _serve(self) -> None:
        """Answer requests; load the grammar vocabulary only after startup, to keep the first response fast."""
        loop = asyncio.get_running_loop()
        loop.call_later(FORMS_SECONDS, loop.run_in_executor, None, self._state.engine.prepare_forms)
        await self._server.serve([self._socket])


class LoopErrors:
    """Logs errors of the event loop, and limits how often it logs that connections cannot be accepted.

    asyncio retries that 2,000 times a second, each with a traceback, and as often again on a socket that has been
    closed meanwhile.
    """

    def __init__(self) -> None:
        self._told = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle one error, with the signature of asyncio's exception handler."""
        error = context.get("exception")
        if isinstance(error, ValueError) and self._told > float("-inf"):
            return
        if not isinstance(error, OSError) or error.errno not in _NO_MORE:
            loop.default_exception_handler(context)
        elif time.monotonic() - self._told > TOLD_AGAIN_SECONDS:
            self._told = time.monotonic()
            log("cannot accept connections", why=error.strerror, fix="raise the open file limit (ulimit -n)")


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, which reserves it; connections are not accepted yet.

    Raises ``UsageError`` for an empty host, and ``EnvironmentProblem`` if the address cannot be bound.
    """
    if not host:
        raise UsageError("--host is empty", fix="use 127.0.0.1 for this machine only, or 0.0.0.0 for all its addresses")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        with _said(host, port):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except BaseException:
        listener.close()
        raise
    listener.set_inheritable(True)
    return listener


@contextmanager
def _said(host: str, port: int) -> Iterator[None]:
    """Convert the system's errors about an address to ``EnvironmentProblem``."""
    try:
        yield
    except (OSError, OverflowError, TypeError, UnicodeError) as error:  # TypeError: an invalid host name
        reason = getattr(error, "strerror", None) or str(error)
        raise EnvironmentProblem(
            f"cannot listen on {host} port {port}", why=reason, fix="use another --host or --port (0 picks a free port)"
        ) from None
