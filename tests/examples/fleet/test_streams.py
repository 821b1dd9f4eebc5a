"""Streams continue if the replica that started them dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from typing import Any

import pytest
from fleet.streams import Broken, api_of, events
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

START: Message = {"type": "http.response.start", "status": 200, "headers": []}
TEXT = "def gcd(a, b):\n    return a"


def _stream(name: str, cuts: set[int]) -> list[str]:
    """The events of a replica that sends ``TEXT`` in pieces, a token for each character."""
    choices: list[dict[str, Any]] = []
    for begin, end in pairwise([0, *sorted(cuts), len(TEXT)]):
        logprobs = {"tokens": list(TEXT[begin:end]), "text_offset": list(range(begin, end))}
        ids = list(range(begin, end))
        choices.append({"text": TEXT[begin:end], "logprobs": logprobs, "token_ids": ids, "finish_reason": None})
    return _events(name, [*choices, {"text": "", "finish_reason": "length"}])


# What each token of a chat adds to its answer. Those inside of a call add nothing that is seen before its end.
CHAT: list[dict[str, Any]] = [
    *({"reasoning_content": each} for each in ["I ", "look ", "it up."]),
    *({"content": each} for each in ["One", " moment", "."]),
    {},
    {"tool_calls": ["get_time"]},
    {},
    {"tool_calls": ["get_weather"]},
    {"content": " Done"},
]


def _chat_stream(name: str, cuts: set[int], are_drafted: list[bool]) -> list[str]:
    """The events of a replica that sends ``CHAT`` in pieces. Ids of calls and what was drafted are its own."""
    choices: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    calls = 0
    for begin, end in pairwise([0, *sorted(cuts), len(CHAT)]):
        delta: dict[str, Any] = {}
        for each in CHAT[begin:end]:
            for key, value in each.items():
                delta[key] = delta.get(key, type(value)()) + value
        called = delta.get("tool_calls", [])
        if called:
            delta["tool_calls"] = [
                {"index": calls + i, "id": f"{name}-{i}", "function": {"name": each}} for i, each in enumerate(called)
            ]
            calls += len(called)
        pieces = zip(CHAT[begin:end], are_drafted[begin:end], strict=True)
        choices.append(
            {
                "delta": delta,
                "logprobs": {"content": [{"token": at} for at in range(begin, end)], "refusal": None},
                "token_ids": list(range(begin, end)),
                "drafted": [[each["content"], drafted] for each, drafted in pieces if "content" in each],
                "finish_reason": None,
            }
        )
    return _events(name, [*choices, {"delta": {}, "finish_reason": "tool_calls"}])


def _events(name: str, choices: list[dict[str, Any]]) -> list[str]:
    said = [json.dumps({"id": name, "created": len(name), "choices": [{"index": 0, **each}]}) for each in choices]
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


def _choices(told: list[str]) -> list[dict[str, Any]]:
    """The choices of a whole stream."""
    assert told[-1] == "data: [DONE]\n\n"
    contents = [json.loads(event.removeprefix("data: ")) for event in told[:-1]]
    assert len({(content["id"], content["created"]) for content in contents}) == 1
    return [choice for content in contents for choice in content["choices"]]


def _joined(parts: Iterable[list[Any]]) -> list[Any]:
    return [each for part in parts for each in part]


CUTS = st.sets(st.integers(1, len(TEXT) - 1))
CHAT_CUTS = st.sets(st.integers(1, len(CHAT) - 1))
DRAFTED = st.lists(st.booleans(), min_size=len(CHAT), max_size=len(CHAT))


@given(CUTS, CUTS, st.integers(0, len(TEXT)))
def test_a_stream_resumed_at_any_place_is_one_stream(first: set[int], second: set[int], died: int) -> None:
    """Another replica cuts the same text in other places."""
    choices = _choices(_told("/v1/completions", _stream("first", first)[:died], _stream("second", second)))
    assert "".join(choice["text"] for choice in choices) == TEXT
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    logprobs = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    assert "".join(_joined(each["tokens"] for each in logprobs)) == TEXT
    assert _joined(each["text_offset"] for each in logprobs) == list(range(len(TEXT)))
    assert _joined(choice.get("token_ids", []) for choice in choices) == list(range(len(TEXT)))


@given(CHAT_CUTS, CHAT_CUTS, DRAFTED, DRAFTED, st.integers(0, len(CHAT) + 1))
def test_a_chat_resumed_at_any_place_has_all_its_reasoning_text_and_calls_once(
    first: set[int], second: set[int], drafted: list[bool], drafted_again: list[bool], died: int
) -> None:
    begun, again = _chat_stream("first", first, drafted)[:died], _chat_stream("second", second, drafted_again)
    choices = _choices(_told("/v1/chat/completions", begun, again))
    deltas = [choice["delta"] for choice in choices]
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "I look it up."
    assert "".join(delta.get("content", "") for delta in deltas) == "One moment. Done"
    calls = _joined(delta.get("tool_calls", []) for delta in deltas)
    assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "get_time"), (1, "get_weather")]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    assert _joined(choice.get("token_ids", []) for choice in choices) == list(range(len(CHAT)))
    logprobs = _joined(choice["logprobs"]["content"] for choice in choices if choice.get("logprobs"))
    assert [each["token"] for each in logprobs] == list(range(len(CHAT)))
    for choice in choices:
        assert "".join(text for text, _ in choice.get("drafted", [])) == choice["delta"].get("content", "")


def test_a_comment_of_a_chat_passes_unchanged() -> None:
    assert _told("/v1/chat/completions", [": waiting\n\n"])[0] == ": waiting\n\n"


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
