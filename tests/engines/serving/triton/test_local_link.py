"""The connection between models of one server: data arrives unchanged, and a lost peer is detected."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines.serving.triton import local_link
from peagle.engines.serving.triton.local_link import LinkError, LinkSender, Listener, Tensors, send_request
from peagle.plugins.errors import EnvironmentProblem
from tests.engines.serving.triton.stand_in import Code, ResponseOf, TensorOf, TritonErrorOf

SECONDS = 30


def never() -> bool:
    """Whether a request is unwanted: it is wanted."""
    return False


def response(**arrays: Any) -> ResponseOf:
    """A response with these outputs."""
    return ResponseOf([TensorOf(name, np.asarray(array)) for name, array in arrays.items()])


class Model:
    """One that holds an engine, as far as those in front can tell; each test has names of its own."""

    def __init__(self, begin: Callable[[LinkSender, Tensors], None], name: str = "", places: int = 1) -> None:
        self.name = name or uuid.uuid4().hex
        self.listener = Listener(self.name, places, begin)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()


def echo(sender: LinkSender, tensors: Tensors) -> None:
    """Answer with the request, in two responses."""
    sender.send(response(**tensors))
    sender.send(response(), flags=1)


def test_responses_arrive_in_order_until_the_last() -> None:
    def begin(sender: LinkSender, tensors: Tensors) -> None:
        for number in range(int(tensors["count"].item())):
            sender.send(response(number=np.array([[number]], np.int32)))
        sender.send(response(number=np.array([[-1]], np.int32)), flags=1)

    with Model(begin) as model:
        found = send_request(model.name, 1, {"count": np.array([[50]])}, never)
        assert [each["number"].item() for each in found] == [*range(50), -1]


ARRAYS = st.one_of(
    st.lists(st.binary(max_size=6), min_size=1, max_size=4).map(lambda each: np.array(each, np.object_)[None]),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5).map(lambda each: np.array(each, np.int32)[None]),
    st.lists(st.integers(0, 2**64 - 1), max_size=5).map(lambda each: np.array(each, np.uint64)[None]),
    st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(lambda each: np.array(each, np.float32)[None]),
    st.lists(st.booleans(), max_size=5).map(lambda each: np.array(each, np.bool_)[None]),
)


def test_tensors_round_trip() -> None:
    with Model(echo) as model:

        @settings(max_examples=30, deadline=None)
        @given(st.dictionaries(st.text(max_size=3), ARRAYS, max_size=3))
        def arrive(tensors: Tensors) -> None:
            first, last = send_request(model.name, 1, tensors, never)
            assert last == {}
            assert first.keys() == tensors.keys()
            for name, array in tensors.items():
                assert (first[name].dtype, first[name].shape) == (array.dtype, array.shape)
                assert first[name].tolist() == array.tolist()

        arrive()


def test_an_error_arrives_with_its_code() -> None:
    def begin(sender: LinkSender, _: Tensors) -> None:
        sender.send(ResponseOf(failure=TritonErrorOf("that is wrong", Code.INVALID_ARG)), flags=1)

    with Model(begin) as model, pytest.raises(LinkError, match="that is wrong") as caught:
        list(send_request(model.name, 1, {}, never))
    assert caught.value.code == "INVALID_ARG"


def test_a_cancelled_request_is_cancelled_at_the_other_side() -> None:
    senders: SimpleQueue[LinkSender] = SimpleQueue()
    unwanted = threading.Event()
    with Model(lambda sender, _: senders.put(sender)) as model:
        asked = threading.Thread(target=lambda: list(send_request(model.name, 1, {}, unwanted.is_set)))
        asked.start()
        sender = senders.get(timeout=SECONDS)
        assert not sender.is_cancelled()
        unwanted.set()
        asked.join(SECONDS)
        end = time.monotonic() + SECONDS
        while not sender.is_cancelled():
            assert time.monotonic() < end
        sender.send(response(), flags=1)  # has no effect, and is not an error


def test_an_end_without_a_last_response_is_noticed() -> None:
    def begin(sender: LinkSender, _: Tensors) -> None:
        sender.send(response(a=[1]))
        sender._connection.close()

    with Model(begin) as model, pytest.raises(EnvironmentProblem, match="has stopped"):
        list(send_request(model.name, 1, {}, never))


def test_missing_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_link, "GAP_SECONDS", 0.0)
    with Model(echo) as model:
        list(send_request(model.name, 1, {}, never))
    with pytest.raises(EnvironmentProblem, match=f"model {model.name}, which holds the engine, is not running"):
        list(send_request(model.name, 1, {}, never))


def test_reloaded_model_takes_over() -> None:
    def answer(number: int) -> Callable[[LinkSender, Tensors], None]:
        return lambda sender, _: sender.send(response(number=[number]), flags=1)

    def asked() -> int:
        return int(next(send_request(old.name, 1, {}, never))["number"].item())

    with Model(answer(1)) as old:
        assert asked() == 1
        with Model(answer(2), old.name):
            assert asked() == 1
            old.listener.close()
            assert asked() == 2


def test_request_of_a_model_that_ends_before_it_answers_is_sent_to_the_next() -> None:
    def begin(sender: LinkSender, _: Tensors) -> None:
        old.listener.close()
        sender._connection.close()

    with Model(begin) as old, Model(echo, old.name):
        assert len(list(send_request(old.name, 1, {}, never))) == 2


def test_every_instance_is_queried() -> None:
    def answer(number: int) -> Callable[[LinkSender, Tensors], None]:
        return lambda sender, _: sender.send(response(number=[number]), flags=1)

    with Model(answer(1), places=2) as first, Model(answer(2), first.name, places=2):
        seen: set[int] = set()
        end = time.monotonic() + SECONDS
        while seen != {1, 2}:
            assert time.monotonic() < end
            seen.add(int(next(send_request(first.name, 2, {}, never))["number"].item()))


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b'{"a": 1}\n', b'{"a": ["int32", [2], [1]]}\n', b""])
def test_non_request_message_is_ignored(line: bytes) -> None:
    begun: list[Tensors] = []

    def begin(sender: LinkSender, tensors: Tensors) -> None:
        begun.append(tensors)
        sender.send(flags=1)

    with Model(begin) as model:
        with local_link._connected(model.name, 1) as connection:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(SECONDS)
            assert connection.recv(1) == b""
        assert list(send_request(model.name, 1, {}, never)) == [{}], "others are still heard"
    assert begun == [{}]


# Takes an address before the model does, and prints what it receives.
_SQUATTER = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(sys.argv[1].encode("latin-1").replace(b"@", b"\\0", 1))
listener.listen()
print("ready", flush=True)
connection, _ = listener.accept()
connection.settimeout(30)
print(connection.recv(65536), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_socket_of_another_user_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_link, "GAP_SECONDS", 0.0)
    model, nobody = uuid.uuid4().hex, 65534
    address = local_link._address(model, os.getppid(), 0).replace("\0", "@")
    command = [sys.executable, "-I", "-c", _SQUATTER, address, str(nobody)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "ready\n"
        with pytest.raises(EnvironmentProblem, match=f"a process of user {nobody} has taken its address"):
            list(send_request(model, 1, {"prompt": np.array([[b"a secret"]], np.object_)}, never))
        assert squatter.stdout.readline() == "b''\n"


def test_only_the_user_of_this_process_and_root_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check on both sides of the link, for any user."""
    begun: list[Tensors] = []

    def begin(sender: LinkSender, tensors: Tensors) -> None:
        begun.append(tensors)
        sender.send(flags=1)

    monkeypatch.setattr(local_link, "GAP_SECONDS", 0.0)
    with Model(begin) as model:
        for user in (os.geteuid(), 0):
            monkeypatch.setattr(local_link, "_user_of", lambda _, user=user: user)
            assert list(send_request(model.name, 1, {}, never)) == [{}]
        monkeypatch.setattr(local_link, "_user_of", lambda _: os.geteuid() + 1)
        with pytest.raises(EnvironmentProblem, match="has taken its address"):
            list(send_request(model.name, 1, {}, never))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(local_link._address(model.name, os.getppid(), 0))
            stranger.settimeout(SECONDS)
            assert stranger.recv(1) == b"", "the listener closes without reading"
    assert begun == [{}, {}]
