"""The address on which a server listens: a TCP port or a Unix socket, with or without TLS."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.regular_files import read_regular

_MAX_PEM_BYTES = 10_000_000
_PROBE_SECONDS = 1.0
BACKLOG = 2048


@dataclass(frozen=True)
class Tls:
    """The PEM files of a certificate (with its chain) and of its private key."""

    certfile: Path
    keyfile: Path

    def __post_init__(self) -> None:
        """Raise ``EnvironmentProblem`` if the files cannot be used."""
        for flag, path, text in (
            ("--ssl-certfile", self.certfile, b"-----BEGIN CERTIFICATE-----"),
            ("--ssl-keyfile", self.keyfile, b"PRIVATE KEY-----"),
        ):
            try:
                content = read_regular(path, _MAX_PEM_BYTES)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                raise _unusable(f"{flag} {path} cannot be read", why) from None
            if text not in content:
                raise _unusable(f"{flag} {path} is not usable", f"the file does not contain {text.decode()}")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certfile, self.keyfile, _no_passphrase)
        except (ssl.SSLError, OSError) as error:
            why = "the key does not belong to the certificate" if "MISMATCH" in str(error) else str(error)
            raise _unusable(f"{self.certfile} and {self.keyfile} are not usable", why) from None

    @classmethod
    def of(cls, certfile: Path | None, keyfile: Path | None) -> Tls | None:
        """Return the files of the two options, None for neither. Raises ``UsageError`` for only one of them."""
        if certfile is None and keyfile is None:
            return None
        if certfile is None or keyfile is None:
            missing = "--ssl-certfile" if certfile is None else "--ssl-keyfile"
            raise UsageError(
                f"{missing} is missing", why="HTTPS needs a certificate and its private key", fix="pass both options"
            )
        return cls(certfile, keyfile)


def _no_passphrase() -> str:
    raise _unusable("the key of --ssl-keyfile is encrypted", "a server cannot ask for the key's passphrase")


def _unusable(what: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        what, why=why, fix="pass a certificate and its key without a passphrase, both as PEM files"
    )


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, which reserves it; connections are not accepted yet.

    Raises ``UsageError`` for an empty host, and ``EnvironmentProblem`` if the address cannot be bound.
    """
    if not host:
        raise UsageError(
            "--host is empty",
            fix="use 127.0.0.1 to accept connections from this machine only, or 0.0.0.0 to listen on all addresses",
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        with listen_errors(host, port):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except BaseException:
        listener.close()
        raise
    listener.set_inheritable(True)
    return listener


class UnixListener(socket.socket):
    """A Unix socket that listens. ``close`` removes its file, unless another one has taken its place."""

    _own: tuple[Path, os.stat_result] | None = None

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)

    def listen_on(self, path: Path) -> None:
        """Create the file at ``path``. Raises ``OSError`` if there is one."""
        self.bind(str(path))
        self._own = path.absolute(), path.stat()
        self.listen(BACKLOG)

    def close(self) -> None:
        """Remove the file and close the socket."""
        inode, self._own = self._own, None  # once: a later file could get the same inode
        with suppress(OSError):  # such as a folder that is gone: the server still stops
            if inode and os.path.samestat(inode[0].stat(), inode[1]):
                inode[0].unlink()
        super().close()


def bound_unix(path: Path) -> UnixListener:
    """Return a Unix socket that listens on ``path``; a socket there on which nobody listens is replaced.

    It listens at once, so that another server does not take a socket over while an engine loads; clients wait until
    then. Raises ``EnvironmentProblem`` if the path cannot be used.
    """
    listener = UnixListener()
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        listener.listen_on(path)
    except OSError as error:
        listener.close()
        raise EnvironmentProblem(
            f"cannot listen on --uds {path}", why=error.strerror or str(error), fix="use another path"
        ) from None
    listener.set_inheritable(True)
    return listener


def unix_path(listener: socket.socket) -> Path | None:
    """Return the path of a Unix socket, None for other sockets."""
    return Path(listener.getsockname()) if listener.family == socket.AF_UNIX else None


def _answers(path: Path) -> bool:
    """Return True if a server accepts connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, suppress(ConnectionRefusedError):
        client.settimeout(_PROBE_SECONDS)
        with suppress(BlockingIOError):  # so many wait there already that this one cannot
            client.connect(str(path))
        return True
    return False


@contextmanager
def listen_errors(host: str, port: int) -> Iterator[None]:
    """Convert the system's errors about an address to ``EnvironmentProblem``."""
    try:
        yield
    except (OSError, OverflowError, TypeError, UnicodeError) as error:  # TypeError: an invalid host name
        reason = getattr(error, "strerror", None) or str(error)
        raise EnvironmentProblem(
            f"cannot listen on {host} port {port}", why=reason, fix="use another --host or --port (0 picks a free port)"
        ) from None
