"""Streams continue if the replica that started them dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fleet.streams import Broken, api_of, events
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
TEXT = "def gcd(a, b):\n    return a"


def _stream(name: str, cuts: set[int], **choice: Any) -> list[str]:
    """The events of a replica that sends ``TEXT`` in pieces."""
    ends = [*sorted(cuts), len(TEXT)]
    pieces = [TEXT[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    last = {"index": 0, "text": "", "finish_reason": "length"}
    choices = [*({"index": 0, "text": piece, "finish_reason": None, **choice} for piece in pieces), last]
    said = [json.dumps({"id": name, "created": len(name), "choices": [each]}) for each in choices]
    return [f"data: {each}\n\n" for each in [*said, "[DONE]"]]


def _told(path: str, *parts: list[str], error: str = "") -> list[str]:
    """The events that the client gets from replicas of which each sent these events."""

    async def messages() -> AsyncIterator[Message]:
        for number, part in enumerate(parts):
            if number:
                yield START
            whole = "".join(part).encode()
            for begin in range(0, len(whole), 50):  # bodies do not end where events do
                yield {"type": "http.response.body", "body": whole[begin : begin + 50]}
        if error:
            raise Broken(error)

    async def told() -> list[str]:
        return [event async for event in events(messages(), api_of(path))]

    return asyncio.run(told())


def _contents(told: list[str]) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix("data: ")) for event in told[:-1]]


CUTS = st.sets(st.integers(1, len(TEXT) - 1))


@given(CUTS, CUTS, st.integers(0, len(TEXT)))
def test_a_stream_resumed_at_any_place_is_one_stream(first: set[int], second: set[int], died: int) -> None:
    """Another replica cuts the same text in other places."""
    told = _told("/v1/completions", _stream("first", first)[:died], _stream("second", second))
    assert told[-1] == "data: [DONE]\n\n"
    choices = [choice for content in _contents(told) for choice in content["choices"]]
    assert "".join(choice["text"] for choice in choices) == TEXT
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert len({(content["id"], content["created"]) for content in _contents(told)}) == 1


def test_an_event_with_logprobs_is_not_cut() -> None:
    part = _stream("first", {4}, logprobs={"tokens": []})[:1]
    told = _told("/v1/completions", part, _stream("second", {9}, logprobs={"tokens": []}))
    assert "logprobs" in json.loads(told[-1].removeprefix("data: "))["error"]["message"]


def test_events_of_other_apis_pass_unchanged() -> None:
    sent = ['event: ping\ndata: {"type": "ping"}\n\n', 'event: message_stop\ndata: {"type": "message_stop"}\n\n']
    assert _told("/v1/messages", sent) == _told("/v1/responses", sent) == sent


@pytest.mark.parametrize(
    ("path", "named"), [("/v1/completions", False), ("/v1/messages", True), ("/v1/responses", True)]
)
def test_a_stream_that_breaks_off_ends_with_the_error_event_of_its_api(path: str, named: bool) -> None:
    (event,) = _told(path, [], error="its replica died")
    assert event.startswith("event: error\n") == named
    content = json.loads(event.rpartition("data: ")[2])
    problem = content if path == "/v1/responses" else content["error"]
    assert problem["message"] == "the stream broke off: its replica died"
    assert not named or content["type"] == "error"
