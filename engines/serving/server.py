"""The HTTP server: it listens, answers requests, and finishes running requests on shutdown."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...plugins.errors import EnvironmentProblem
from ..engine import Engine
from .access import log
from .app import create_app
from .browsers import allowed_hosts
from .listening import BACKLOG, Tls, bound, listen_errors, unix_path
from .settings import ServerSettings
from .state import ServerState

KEEP_ALIVE_SECONDS = 30  # until the headers of a connection's next request have arrived, the first one included
UNREAD_SECONDS = 60  # in which a client reads nothing of what waits for it
REPEAT_SECONDS = 10.0
FORMS_SECONDS = 1.0
END_SECONDS = 1.0  # for the last responses, once the time of running requests is over
_POLL_SECONDS = 0.05
_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Server:
    """An HTTP server in a thread of its own. After ``stop``, it finishes running requests and ends.

    ``port`` 0 picks a free port. Raises ``EnvironmentProblem`` if the address is in use or not local. To detect this
    before loading an engine, call ``bound`` or ``bound_unix`` and pass the result as ``address``. With ``tls``, the
    server answers HTTPS.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        host: str = "127.0.0.1",
        port: int = 8000,
        address: socket.socket | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._socket = address or bound(host, port)
        self._path, self._scheme = unix_path(self._socket), "http" if tls is None else "https"
        name = ("localhost", 0) if self._path else self._socket.getsockname()
        hosts = allowed_hosts(name[0] if self._path else host, name[0], settings.allowed_hosts)
        self._app = create_app(engine, settings, hosts)
        self._state = self._app.state.server
        self.host, self.port = host, int(name[1])
        self._error: Exception | None = None
        with listen_errors(host, self.port):
            self._socket.listen(BACKLOG)
        self._server = _Uvicorn(
            uvicorn.Config(
                self._app,
                http=_Connection,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                ssl_certfile=None if tls is None else tls.certfile,
                ssl_keyfile=None if tls is None else tls.keyfile,
            ),
            self._state,
        )
        self._thread = threading.Thread(target=self._answer, name="http", daemon=True)

    @property
    def url(self) -> str:
        """The server's URL; for a Unix socket, ``unix:`` and its path."""
        if self._path:
            return f"unix:{self._path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.port}"

    def start(self) -> None:
        """Start answering requests."""
        self._thread.start()

    def stop(self, *, immediately: bool = False) -> None:
        """Refuse new requests; running ones have ``drain_seconds`` to finish, or get 503 now if ``immediately``."""
        self._state.drains = True
        self._server.should_exit = True
        self._server.ends_at_once = self._server.ends_at_once or immediately

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the server has ended; return whether it has. Raises ``EnvironmentProblem`` if it failed."""
        self._thread.join(seconds)
        if self._error is not None:
            raise EnvironmentProblem(
                "the server stopped unexpectedly",
                why=f"{type(self._error).__name__}: {self._error}",
                fix="start the server again; if too many files are open, raise the limit first (ulimit -n)",
            ) from self._error
        return not self._thread.is_alive()

    def _answer(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                runner.get_loop().set_exception_handler(LoopErrors())
                runner.run(self._serve())
        except Exception as error:  # such as no file descriptors left; ``wait`` reports it
            self._error = error
        finally:
            self._state.encoders.shutdown(wait=False, cancel_futures=True)

    async def _serve(self) -> None:
        """Answer requests; load the grammar vocabulary only after startup, to keep the first response fast."""
        loop = asyncio.get_running_loop()
        later = loop.call_later(FORMS_SECONDS, loop.run_in_executor, None, self._state.engine.prepare_forms)
        try:
            await self._server.serve([self._socket])
        finally:
            later.cancel()  # it would find no executor while the loop ends


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which tells running requests that their time is over before it cancels them.

    uvicorn itself only cancels them: their clients would get no error of the API, and the log a traceback for each.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state, self.ends_at_once = state, False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running requests, as uvicorn does, but not longer than ``drain_seconds``.

        What still runs then is cancelled with the event loop. Setting ``force_exit`` would not do: from Python 3.12 on,
        uvicorn then still waits until every connection is closed.
        """
        whole, end = asyncio.create_task(super().shutdown(sockets)), asyncio.create_task(self._end())
        await asyncio.wait({whole, end}, return_when=asyncio.FIRST_COMPLETED)
        end.cancel()
        if whole.done():
            await whole

    async def _end(self) -> None:
        last = time.monotonic() + self._state.limits.drain_seconds
        while not self.ends_at_once and time.monotonic() < last:  # ``stop`` sets it in another thread
            await asyncio.sleep(_POLL_SECONDS)
        self._state.ends.set()
        await asyncio.sleep(END_SECONDS)


class _Connection(H11Protocol):
    """A connection that is closed if the headers of its next request do not arrive in time, or nobody reads a response.

    uvicorn's own timer starts with the first response, and ends with the first byte of the next request. It has none
    for a response, and a closed connection waits until the rest of its last response is read.
    """

    _idle_timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._time_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._idle_timer, self._unread):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_headers()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._time_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._time_headers()

    def _time_headers(self) -> None:
        """Start the timer, unless it runs; stop it while there is a request."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._idle_timer is not None and is_answering:
            self._idle_timer.cancel()
            self._idle_timer = None
        elif self._idle_timer is None and not is_answering:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._time_reading()

    def _time_reading(self, before: int | None = None) -> None:
        """Drop the connection if the client has read nothing since ``before``, the bytes that waited for it then."""
        waiting = self.transport.get_write_buffer_size()
        if before is not None and waiting >= before:
            log("dropped a connection", why=f"the client read nothing for {UNREAD_SECONDS} seconds")
            self.transport.abort()
        elif waiting:
            if self._unread is not None:
                self._unread.cancel()
            self._unread = self.loop.call_later(UNREAD_SECONDS, self._time_reading, waiting)


class LoopErrors:
    """Logs errors of the event loop, and limits how often it logs that connections cannot be accepted.

    asyncio retries that 2,000 times a second, each with a traceback, and as often again on a socket that has been
    closed in the meantime.
    """

    def __init__(self) -> None:
        self._reported_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle one error, with the signature of asyncio's exception handler."""
        error = context.get("exception")
        if isinstance(error, ValueError) and self._reported_at > float("-inf"):
            return
        if not isinstance(error, OSError) or error.errno not in _NO_MORE:
            loop.default_exception_handler(context)
        elif time.monotonic() - self._reported_at > REPEAT_SECONDS:
            self._reported_at = time.monotonic()
            log("cannot accept connections", why=error.strerror, fix="raise the open file limit (ulimit -n)")
