"""A server that runs: it listens, answers, and when it is told to stop takes no more and ends what it has."""

from __future__ import annotations

import socket
import threading

import uvicorn

from ...plugins.errors import EnvironmentProblem
from ..engine import Engine
from .app import create_app
from .settings import ServerSettings

KEEP_ALIVE_SECONDS = 30


class Server:
    """Answers in a thread of its own, from ``start`` until what ``stop`` lets run has ended.

    ``port`` 0 takes a free one. Raises ``EnvironmentProblem`` for an address that is taken or not this machine's.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, host: str = "127.0.0.1", port: int = 8000) -> None:
        self._app = create_app(engine, settings)
        self._state = self._app.state.server
        self._socket = _listening(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
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
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)

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
        """Wait until it has ended; returns whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise EnvironmentProblem(
            f"cannot listen on {host} port {port}", why=reason, fix="name another --host or --port (0 takes a free one)"
        ) from None
    listener.set_inheritable(True)
    return listener
