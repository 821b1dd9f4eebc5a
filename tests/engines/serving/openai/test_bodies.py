"""Bodies of requests, without a server: what is said of a field is what becomes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chats

from peagle.engines.serving.openai.bodies import IGNORED, ChatBody, CompletionBody, body_of
from peagle.engines.serving.openai.options import asked_of
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.settings import ServerSettings

PAGE = Path(__file__).parents[4] / "docs" / "serving.md"
FIELDS = {field.name for body in (ChatBody, CompletionBody) for field in msgspec.structs.fields(body)}


def test_the_docs_say_of_every_field_what_becomes_of_it() -> None:
    table = PAGE.read_text().split("## Fields")[1].split("## Metrics")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(FIELDS)


def test_fields_that_change_nothing_may_hold_anything() -> None:
    fields = {key: {"a": [1, "b"]} for key in IGNORED}
    body = body_of(msgspec.json.encode({"prompt": "a", **fields}), CompletionBody)
    assert asked_of(body, 10, 1, ServerSettings("m")).choices == 1


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"messages": 3}', "messages"),
        (b'{"messages": [3]}', "messages[0]"),
        (b"{}", "messages"),
        (b'{"messages": [], "colour": 1}', "colour"),
        (b'{"messages": [], "temperature": "warm"}', "temperature"),
        (b'{"messages": [], "stream_options": {"usage": true}}', "usage"),
        (b"[1]", None),
        (b"{", None),
        (b'{"messages": "\xff"}', "messages"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_with_the_path(raw: bytes, param: str | None) -> None:
    with pytest.raises(HttpRefusal) as refused:
        body_of(raw, ChatBody)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_tokens_at_most_are_what_there_is_room_for_in_a_chat_and_sixteen_in_a_completion() -> None:
    chat, completion = body_of(b'{"messages": []}', ChatBody), body_of(b'{"prompt": "a"}', CompletionBody)
    assert asked_of(chat, 500, 1, ServerSettings("m")).params.max_tokens == 500
    assert asked_of(completion, 500, 1, ServerSettings("m")).params.max_tokens == 16
    both = body_of(b'{"messages": [], "max_tokens": 5, "max_completion_tokens": 7}', ChatBody)
    assert asked_of(both, 500, 1, ServerSettings("m")).params.max_tokens == 7


@pytest.mark.parametrize(("theirs", "ours"), [(completions, CompletionBody), (chats, ChatBody)])
def test_every_field_that_the_official_client_can_send_is_known(theirs: Any, ours: type[msgspec.Struct]) -> None:
    assert set(theirs.CompletionCreateParamsBase.__annotations__) <= set(ours.__struct_fields__)
