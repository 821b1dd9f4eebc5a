"""The front without Ray, before replicas that die."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fleet.question import Question
from starlette.requests import Request
from starlette.types import Message

from tests.examples.fleet.conftest import ActorDiedError

DIES = ActorDiedError("its process ended")
TEXT = b'data: {"id": "a", "choices": [{"index": 0, "text": "def", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
PART = b'data: {"id": "a", "choices": [{"index": 0, "text": "d", "finish_reason": null}]}\n\n'
Said = list[Message | ActorDiedError]
Ask = Callable[..., tuple[int, str]]


def _start(status: int = 200, engine: str = "e1") -> Message:
    headers = [(b"x-replica", b"r"), (b"x-engine", engine.encode())] if status != 421 else []
    return {"type": "http.response.start", "status": status, "headers": headers}


def _body(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body}


@pytest.fixture
def ask(module_of_fleet: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that asks the front for a stream, given what one replica after another says."""
    front = module_of_fleet("front")
    monkeypatch.setattr(front, "PAUSES", (0.0, 0.0, 0.0))

    async def answered(*replicas: Said) -> tuple[int, str]:
        left = iter(replicas)

        async def answer(question: Question) -> AsyncIterator[Message]:
            for each in next(left):
                if isinstance(each, ActorDiedError):
                    raise each
                yield each

        handle = SimpleNamespace(answer=SimpleNamespace(remote=answer))
        handle.options = lambda *, stream: handle
        serve = SimpleNamespace(get_deployment_handle=lambda deployment, application: handle)
        monkeypatch.setattr(front, "serve", serve)

        async def receive() -> Message:
            return {"type": "http.request", "body": b'{"prompt": "a", "stream": true}', "more_body": False}

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}
        response = await front.Front("Replica", "engine")(Request({**scope, "server": ("x", 1)}, receive))
        if not hasattr(response, "body_iterator"):
            return response.status_code, response.body.decode()
        return response.status_code, "".join([piece async for piece in response.body_iterator])

    return lambda *replicas: asyncio.run(answered(*replicas))


def test_a_stream_whose_replica_dies_before_its_first_byte_is_that_of_the_next(ask: Ask) -> None:
    status, said = ask([_start(), DIES], [DIES], [_start(engine="e2"), _body(TEXT)])
    assert (status, said.encode()) == (200, TEXT)


@pytest.mark.parametrize(
    ("begun", "refusal", "says"),
    [
        ([_start()], 503, "the next one refused it with status 503"),
        ([_start(), _body(PART)], 503, "the next one refused it with status 503"),
        ([_start(), _body(PART)], 421, "no other can continue it with the same engine"),
    ],
)
def test_a_stream_that_the_next_replica_refuses_ends_with_an_error(
    ask: Ask, begun: Said, refusal: int, says: str
) -> None:
    status, said = ask([*begun, DIES], [_start(refusal), _body(b'{"error": {}}')])
    assert status == 200  # it was sent before
    problem = json.loads(said.rpartition("data: ")[2])["error"]
    assert problem["message"] == f"the stream broke off: its replica died, and {says}"


@pytest.mark.parametrize(
    ("replicas", "status"),
    [([[_start(400), _body(b"no")]], 400), ([[_start(400), DIES], [_start(503)]], 503), ([[DIES]] * 3, 503)],
)
def test_a_stream_that_does_not_begin_has_a_status(ask: Ask, replicas: list[Said], status: int) -> None:
    assert ask(*replicas)[0] == status
