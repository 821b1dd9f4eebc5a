"""A server that runs: it listens, answers, and when it is told to stop takes no more and ends what it has."""

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
    """Answers in a thread of its own, from ``start`` until what ``stop`` lets run has ended.

    ``port`` 0 takes a free one. Raises ``EnvironmentProblem`` for an address that is taken or not this machine's; who
    would know before an engine is loaded gives the ``address`` that ``bound`` made of host and port.
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
        """Where it answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more requests; those that run end, within ``drain_seconds``, unless they are cut off ``at_once``."""
        self._state.drains = True
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or at_once

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended; returns whether it has. Raises ``EnvironmentProblem`` where it could not go on."""
        self._thread.join(seconds)
        if self._error is not None:
            raise EnvironmentProblem(
                "the server had to end", why=f"{self._error}", fix="see to that, and start it again"
            ) from self._error
        return not self._thread.is_alive()

    def _answer(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                runner.get_loop().set_exception_handler(LoopErrors())
                runner.run(self._serve())
        except Exception as error:  # such as no file that may be opened; told by who waits
            self._error = error

    async def _serve(self) -> None:
        """Answer; what forms of texts need is read when whoever waits for the server has had its first answer."""
        loop = asyncio.get_running_loop()
        loop.call_later(FORMS_SECONDS, loop.run_in_executor, None, self._state.engine.prepare_forms)
        await self._server.serve([self._socket])


class LoopErrors:
    """Tells what fails in the event loop, and once in a while that connections cannot be taken.

    asyncio tries that 2,000 times a second, each with a trace of its own, and as often again on a socket that is closed
    by then.
    """

    def __init__(self) -> None:
        self._told = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle one, as asyncio asks for it."""
        error = context.get("exception")
        if isinstance(error, ValueError) and self._told > float("-inf"):
            return
        if not isinstance(error, OSError) or error.errno not in _NO_MORE:
            loop.default_exception_handler(context)
        elif time.monotonic() - self._told > TOLD_AGAIN_SECONDS:
            self._told = time.monotonic()
            log("no more connections", why=error.strerror, fix="allow more open files (ulimit -n)")


def bound(host: str, port: int) -> socket.socket:
    """A socket that has the address, so that no other server takes it; nobody is let in yet.

    Raises ``UsageError`` for no host, and ``EnvironmentProblem`` for an address that cannot be had.
    """
    if not host:
        raise UsageError(
            "--host is empty", fix="say 127.0.0.1 for this machine alone, or 0.0.0.0 for all its addresses"
        )
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
    """Turn what the system has against an address into an error of ours."""
    try:
        yield
    except (OSError, OverflowError, TypeError, UnicodeError) as error:  # a TypeError is of a name that is none
        reason = getattr(error, "strerror", None) or str(error)
        raise EnvironmentProblem(
            f"cannot listen on {host} port {port}", why=reason, fix="name another --host or --port (0 takes a free one)"
        ) from None
