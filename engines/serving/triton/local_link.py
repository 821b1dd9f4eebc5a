"""The way between models of one server: the process that holds an engine listens, the models in front of it connect.

A socket of this machine carries a request and its responses, a line of JSON each, and closing it is the cancel. Triton
has calls of its own for this (BLS), which in 2.51 hand no cancel on, and leave a caller waiting where one is stopped.
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
LONGEST = 16 << 20  # bytes of a line
SEND_SECONDS = 10.0
LOOK_SECONDS = 0.05  # between two looks for a cancel, and for who listens
GAP_SECONDS = 1.0  # in which who listens may change


class LinkSender:
    """Stands for Triton's sender where a request came over a link: what is sent goes into the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(SEND_SECONDS)
        self._poll = select.poll()  # a socket with a timeout waits for it, whatever flags recv is given
        self._poll.register(connection, select.POLLIN)

    def send(self, response: Any = None, flags: int = 0) -> None:
        """Send a response, in vain where nobody reads; with ``flags`` it was the last."""
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
        """Whether the other side has closed its end."""
        try:
            return bool(self._poll.poll(0)) and self._connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True


class Listener:
    """Takes requests of models in front, and gives each to ``begin`` with its sender, in a thread of its own.

    The instances of a model take one of its ``places`` each. Where none is free the next that is gets taken: a model
    that is loaded anew begins before the one that it replaces ends.
    """

    def __init__(self, model: str, places: int, begin: Callable[[LinkSender, Tensors], None]) -> None:
        self._addresses = [_address(model, os.getppid(), place) for place in range(places)]
        self._begin, self._is_closed = begin, threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listens = self._takes_place()
        self._thread = threading.Thread(target=self._run, name="peagle-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more."""
        self._is_closed.set()
        with contextlib.suppress(OSError):  # it does not listen yet, and will not
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        with self._socket:
            while not self._listens:
                if self._is_closed.wait(LOOK_SECONDS):
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
            except OSError:  # another instance has it
                continue
            self._socket.listen(1024)
            return True
        return False

    def _read(self, connection: socket.socket) -> None:
        """Read the one request of a connection. A process of another user gets no answer."""
        if not _is_trusted(_user_of(connection)):
            connection.close()
            return
        connection.settimeout(SEND_SECONDS)
        try:
            line = next(_lines(connection, lambda: False))
            tensors = _read(json.loads(line))
        except (OSError, ValueError, TypeError, AttributeError, StopIteration):  # no request
            connection.close()
            return
        self._begin(LinkSender(connection), tensors)


class LinkError(Exception):
    """The engine's model answered with an error; ``code`` is the name of a code of ``TritonError``."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def asking(
    model: str, places: int, tensors: Mapping[str, np.ndarray], is_unwanted: Callable[[], bool]
) -> Iterator[Tensors]:
    """Yield the responses of ``model`` to a request, until the last or until it ``is_unwanted``, which cancels it.

    Any of its ``places`` is asked. Raises ``LinkError`` for an answer that is an error, and ``EnvironmentProblem``
    where the model is not there.
    """
    with _connected(model, places) as connection:
        connection.settimeout(SEND_SECONDS)
        with contextlib.suppress(OSError):  # who has ended meanwhile sends nothing either
            connection.sendall(json.dumps(_written(tensors)).encode() + b"\n")
        connection.settimeout(LOOK_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            for line in _lines(connection, is_unwanted):
                response = json.loads(line)
                if "error" in response:
                    raise LinkError(response["error"], response["code"])
                yield _read(response.get("tensors", {}))
                if response["is_last"]:
                    return
    if not is_unwanted():
        raise EnvironmentProblem(f"the model {model} has ended", why="it was unloaded, or failed", fix="send it again")


def _connected(model: str, places: int) -> socket.socket:
    """Connect to any instance of a model; for a moment there may be none while it is loaded anew.

    Raises ``EnvironmentProblem`` where there is none after that, or where another user holds its address.
    """
    end = time.monotonic() + GAP_SECONDS
    while True:
        stranger, why = None, ""
        for place in random.sample(range(places), places):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(_address(model, os.getppid(), place))
                user = _user_of(connection)
            except OSError as error:
                connection.close()
                why = str(error)
                continue
            if _is_trusted(user):
                return connection
            connection.close()
            stranger = user
        if time.monotonic() > end:
            raise _absent(model, why) if stranger is None else _taken(model, stranger)
        time.sleep(LOOK_SECONDS)


def _absent(model: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"the model {model} is not there", why=f"it holds the engine ({why})", fix="load it")


def _taken(model: str, user: int) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the model {model} cannot be reached: a process of user {user} has taken its address",
        why=f"this server runs as user {os.geteuid()}; nothing was sent to that process",
        fix="end that process, and load the model again",
    )


def _user_of(connection: socket.socket) -> int:
    """Return the id of the user whose process holds the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _is_trusted(user: int) -> bool:
    """Whether a user may send requests and answer them: the user of this process, and root.

    The abstract namespace has no permissions: any process can bind a name first, and connect to one.
    """
    return user in (os.geteuid(), 0)


def _address(model: str, server: int, place: int) -> str:
    """A name in the abstract namespace of sockets, which needs no file; stubs are children of their server."""
    return f"\0peagle-triton-{server}-{model}-{place}"


def _lines(connection: socket.socket, is_unwanted: Callable[[], bool]) -> Iterator[bytes]:
    """Yield lines until the other side closes, or they are unwanted. Raises ``ValueError`` for one without an end."""
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
            raise ValueError("a line without an end")


def _written(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Tensors as JSON says them; bytes are characters of Latin-1."""
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
