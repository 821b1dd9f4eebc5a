"""Link between models of one server: the process with the engine listens, and front models connect to it.

A local socket carries a request and its responses, one line of JSON each; closing the socket cancels the request.
Triton's own calls between models (BLS) do not forward cancellation in 2.51, and block the caller when a request is
stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ....plugins.errors import EnvironmentProblem

Tensors = dict[str, np.ndarray]
LONGEST = 16 << 20  # bytes per line
SEND_SECONDS = 10.0
POLL_SECONDS = 0.05  # between two polls, for cancellation and for a listener
GAP_SECONDS = 1.0  # time for a new listener to take over


class LinkSender:
    """Replaces Triton's sender for a request that came over a link; responses are written to the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(SEND_SECONDS)
        self._poll = select.poll()  # recv on a socket with a timeout waits, whatever its flags
        self._poll.register(connection, select.POLLIN)

    def send(self, response: Any = None, flags: int = 0) -> None:
        """Send a response; ``flags`` marks the last one. Errors are ignored if nobody reads."""
        line: dict[str, Any] = {"is_last": bool(flags)}
        if response is not None and response.has_error():
            line["error"], line["code"] = response.error().message(), response.error().code().name
        elif response is not None:
            line["tensors"] = _written({each.name(): each.as_numpy() for each in response.output_tensors()})
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(line).encode() + b"\n")
        if flags:
            self._connection.close()

    def is_cancelled(self) -> bool:
        """Return True if the peer has closed the connection."""
        try:
            return bool(self._poll.poll(0)) and self._connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True


class Listener:
    """Accepts requests of front models and passes each to ``begin`` with its sender, in a thread of its own.

    Each instance of a model takes one of its ``num_addresses``. If none is free, it waits for the next one that is
    freed, because a reloaded model starts before the one that it replaces ends.
    """

    def __init__(self, model: str, num_addresses: int, begin: Callable[[LinkSender, Tensors], None]) -> None:
        self._addresses = [_address(model, os.getppid(), number) for number in range(num_addresses)]
        self._begin, self._is_closed = begin, threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listens = self._takes_place()
        self._thread = threading.Thread(target=self._run, name="peagle-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting requests."""
        self._is_closed.set()
        with contextlib.suppress(OSError):  # it has not started to listen
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        with self._socket:
            while not self._listens:
                if self._is_closed.wait(POLL_SECONDS):
                    return
                self._listens = self._takes_place()
            while not self._is_closed.is_set():
                try:
                    connection, _ = self._socket.accept()
                except OSError:
                    return
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _takes_place(self) -> bool:
        for address in self._addresses:
            try:
                self._socket.bind(address)
            except OSError:  # taken by another instance
                continue
            self._socket.listen(1024)
            return True
        return False

    def _read(self, connection: socket.socket) -> None:
        """Read the one request of a connection. Processes of other users get no answer."""
        if not _is_trusted(_user_of(connection)):
            connection.close()
            return
        connection.settimeout(SEND_SECONDS)
        try:
            line = next(_lines(connection, lambda: False))
            tensors = _read(json.loads(line))
        except (OSError, ValueError, TypeError, AttributeError, StopIteration):  # not a valid request
            connection.close()
            return
        self._begin(LinkSender(connection), tensors)


class LinkError(Exception):
    """An error response of the engine's model; ``code`` is the name of a ``TritonError`` code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def send_request(
    model: str, num_addresses: int, tensors: Mapping[str, np.ndarray], is_unwanted: Callable[[], bool]
) -> Iterator[Tensors]:
    """Send a request to ``model`` and yield its responses. Once ``is_unwanted`` returns true, the request is cancelled.

    Any of its ``num_addresses`` may answer. A model that is being replaced may end before it reads the request; then
    the request is sent again, for ``GAP_SECONDS``. Raises ``LinkError`` for an error response, and
    ``EnvironmentProblem`` if the model is not running.
    """
    end = time.monotonic() + GAP_SECONDS
    while True:
        has_begun = False
        for response in _responses(model, num_addresses, tensors, is_unwanted):
            if "error" in response:
                raise LinkError(response["error"], response["code"])
            yield _read(response.get("tensors", {}))
            if response["is_last"]:
                return
            has_begun = True
        if is_unwanted():
            return
        if has_begun or time.monotonic() > end:
            raise EnvironmentProblem(
                f"model {model} has stopped", why="the model was unloaded, or it failed", fix="retry the request"
            )
        time.sleep(POLL_SECONDS)


def _responses(
    model: str, num_addresses: int, tensors: Mapping[str, np.ndarray], is_unwanted: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Send a request once and yield its responses until the peer ends the connection."""
    with _connected(model, num_addresses) as connection:
        connection.settimeout(SEND_SECONDS)
        with contextlib.suppress(OSError):  # the peer may have ended
            connection.sendall(json.dumps(_written(tensors)).encode() + b"\n")
        connection.settimeout(POLL_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            for line in _lines(connection, is_unwanted):
                yield json.loads(line)


def _connected(model: str, num_addresses: int) -> socket.socket:
    """Connect to any instance of a model. While it is reloaded, there may be none for a moment.

    Raises ``EnvironmentProblem`` if none appears, or if another user's process holds the address.
    """
    end = time.monotonic() + GAP_SECONDS
    while True:
        other_user, why = None, ""
        for number in random.sample(range(num_addresses), num_addresses):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(_address(model, os.getppid(), number))
                user = _user_of(connection)
            except OSError as error:
                connection.close()
                why = str(error)
                continue
            if _is_trusted(user):
                return connection
            connection.close()
            other_user = user
        if time.monotonic() > end:
            raise _absent(model, why) if other_user is None else _address_in_use(model, other_user)
        time.sleep(POLL_SECONDS)


def _absent(model: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"model {model}, which holds the engine, is not running", why=why, fix="load that model")


def _address_in_use(model: str, user: int) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"cannot connect to model {model}: a process of user {user} has taken its address",
        why=f"this server runs as user {os.geteuid()}; nothing was sent to that process",
        fix="end that process, and load the model again",
    )


def _user_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _is_trusted(user: int) -> bool:
    """Return True if a user may send and answer requests: this process's user or root.

    The abstract namespace has no permissions: any process can bind a name first, or connect to one.
    """
    return user in (os.geteuid(), 0)


def _address(model: str, server: int, number: int) -> str:
    """Return a name in the abstract socket namespace, which needs no file. ``server`` is the parent of all stubs."""
    return f"\0peagle-triton-{server}-{model}-{number}"


def _lines(connection: socket.socket, is_unwanted: Callable[[], bool]) -> Iterator[bytes]:
    """Yield lines until the peer closes the connection or ``is_unwanted`` returns true. Raises ``ValueError`` for an
    overlong line."""
    held = bytearray()
    while not is_unwanted():
        try:
            piece = connection.recv(1 << 16)
        except TimeoutError:
            continue
        if not piece:
            return
        held += piece
        while (end := held.find(b"\n")) >= 0:
            yield bytes(held[:end])
            del held[: end + 1]
        if len(held) > LONGEST:
            raise ValueError("the line is too long")


def _written(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return tensors as JSON values; bytes are Latin-1 characters."""
    return {
        name: ["text", array.shape, [bytes(each).decode("latin-1") for each in array.reshape(-1)]]
        if array.dtype == np.object_
        else [array.dtype.name, array.shape, array.reshape(-1).tolist()]
        for name, array in tensors.items()
    }


def _read(written: Mapping[str, Any]) -> Tensors:
    found: Tensors = {}
    for name, (kind, shape, values) in written.items():
        if kind == "text":
            array = np.array([each.encode("latin-1") for each in values], np.object_)
        else:
            array = np.array(values, np.dtype(kind))
        found[name] = array.reshape(shape)
    return found
