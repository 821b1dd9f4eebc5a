"""The choices of a request: each input is encoded once, within the time limit and while the client waits."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from peagle.engines import Engine
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import Limits, ServerSettings
from tests.engines.serving.calls import call, connect, error_of
from tests.fixtures.servers import MODEL

PROMPT = "def f(x):\n"
CHAT = [{"role": "user", "content": PROMPT}]


@contextmanager
def _when_encoding(engine: Engine, patch: pytest.MonkeyPatch, act: Callable[[int], object]) -> Iterator[None]:
    """Within it, ``act`` is called with the number of characters of every text before it is encoded."""
    encoded = engine.tokenizer._encoded

    def watched(texts: list[str], **options: Any) -> list[list[int]]:
        act(sum(map(len, texts)))
        return encoded(texts, **options)

    with patch.context() as patched:
        patched.setattr(engine.tokenizer, "_encoded", watched)
        yield


@pytest.mark.parametrize(
    ("path", "source"), [("/v1/completions", {"prompt": [PROMPT, "a"]}), ("/v1/chat/completions", {"messages": CHAT})]
)
def test_every_input_is_encoded_once_for_all_of_its_choices(
    server: Server, served_engine: Engine, monkeypatch: pytest.MonkeyPatch, path: str, source: dict[str, Any]
) -> None:
    body, sizes = {**source, "max_tokens": 1}, list[int]()
    assert call(server, "POST", path, body)[0] == 200  # an engine encodes some texts for its first chat
    with _when_encoding(served_engine, monkeypatch, sizes.append):
        status, _, content = call(server, "POST", path, {**body, "n": 2})
    assert status == 200
    assert len(json.loads(content)["choices"]) == 2 * len(sizes)
    assert len(sizes) == len(source.get("prompt", [CHAT]))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/v1/completions", {"prompt": PROMPT * 5000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT * 5000}]}),
    ],
)
def test_only_the_end_of_a_truncated_prompt_is_encoded(
    server: Server, served_engine: Engine, monkeypatch: pytest.MonkeyPatch, path: str, source: dict[str, Any]
) -> None:
    body, sizes = {**source, "max_tokens": 1, "truncate_prompt_tokens": 5}, list[int]()
    assert call(server, "POST", path, body)[0] == 200
    with _when_encoding(served_engine, monkeypatch, sizes.append):
        assert call(server, "POST", path, body)[0] == 200
    (size,) = sizes
    longest = served_engine.tokenizer._limits.characters
    assert longest is not None
    assert 5 * longest < size < 100 * longest < 50_000


def test_the_time_limit_includes_encoding(served_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    server = Server(served_engine, ServerSettings(MODEL, limits=Limits(seconds=0.2)), port=0)
    server.start()
    try:
        with _when_encoding(served_engine, monkeypatch, lambda _: goes_on.wait(20)):
            for streams in (False, True):
                body = {"prompt": PROMPT, "max_tokens": 1, "stream": streams}
                status, _, content = call(server, "POST", "/v1/completions", body)
                assert (status, error_of(content)["type"]) == (408, "timeout_error")
    finally:
        goes_on.set()
        server.stop(immediately=True)
        assert server.wait(10)


def test_a_client_that_leaves_while_its_prompt_is_encoded_is_noticed(
    server: Server, served_engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    caplog.set_level(logging.INFO, "peagle.serving")

    def wait(_: int) -> None:
        begun.set()
        goes_on.wait(20)

    body = json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    try:
        with _when_encoding(served_engine, monkeypatch, wait):
            with connect(server) as sent:
                sent.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
                assert begun.wait(20)
            end = time.monotonic() + 15
            while "the client disconnected" not in " ".join(caplog.messages):
                assert time.monotonic() < end
                time.sleep(0.01)
            assert not goes_on.is_set()
    finally:
        goes_on.set()
