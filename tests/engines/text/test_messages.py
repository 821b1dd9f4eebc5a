"""Messages from callers: accepted values, and errors that name the position."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines.text.messages import messages_of, plain, template_arguments_of, tools_of
from peagle.plugins.errors import UsageError

USER = {"role": "user", "content": "Hi"}


def test_a_content_is_text_or_parts_of_text() -> None:
    parts = [{"type": "text", "text": "one"}, "two", {"text": "three"}]
    assert messages_of("messages", [{"role": "user", "content": parts}]) == [
        {"role": "user", "content": "one\ntwo\nthree"}
    ]
    assert messages_of("messages", (MappingProxyType(USER),)) == [USER]


def test_extra_message_fields_are_passed_without_nulls() -> None:
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
        "name": None,
    }
    assert messages_of("messages", [USER, call, {"role": "tool", "content": "1", "tool_call_id": "x"}])[1:] == [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
    ]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("Hi", "messages must be a list of messages"),
        (USER, "messages must be a list of messages"),
        (None, "messages must be a list of messages"),
        ([], "messages is empty"),
        (["Hi"], r"messages\[0\] must be a dict"),
        ([USER, {"content": "x"}], r"messages\[1\]\['role'\] must be a str"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\['role'\] must be a str"),
        ([{"role": "user"}], r"messages\[0\]\['content'\] must be a str"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\['content'\] must be a str"),
        ([{"role": "user", "content": [3]}], r"messages\[0\]\['content'\]\[0\] must be a part"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"\['content'\]\[0\] has type 'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"\['content'\]\[0\]\['text'\] must be a str"),
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\]\['content'\] is not valid text"),
        ([USER | {"name": object()}], r"messages\[0\]\['name'\] must be a JSON value"),
        ([USER | {"x": [1, {"y": {1, 2}}]}], r"messages\[0\]\['x'\]\[1\]\['y'\] must be a JSON value"),
        ([USER | {3: 4}], r"a key of messages\[0\] must be a str"),
        ([USER, {"role": "assistant", "content": "Hello"}], r"the last message, messages\[1\], is from the assistant"),
    ],
)
def test_invalid_conversation_is_rejected_by_position(messages: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        messages_of("messages", messages)


def test_excessive_nesting_is_rejected() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="nested more than 32 levels deep"):
        plain("tools", endless)


def test_tools_and_variables_are_dicts() -> None:
    assert tools_of("tools", None) is None
    assert tools_of("tools", ({"a": np.float32(0.5), "b": np.bool_(True), "c": np.int64(3)},)) == [
        {"a": 0.5, "b": True, "c": 3}
    ]
    assert template_arguments_of("kwargs", None) == {}
    assert template_arguments_of("kwargs", {"enable_thinking": False}) == {"enable_thinking": False}
    for wrong in ("x", {"a": 1}, [3]):
        with pytest.raises(UsageError, match="tools must be a list of dicts"):
            tools_of("tools", wrong)
    with pytest.raises(UsageError, match="kwargs must be a dict"):
        template_arguments_of("kwargs", [1])
    with pytest.raises(UsageError, match="kwargs must not contain 'tools'"):
        template_arguments_of("kwargs", {"tools": []})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(_JSON)
def test_plain_copy_equals_its_json(value: Any) -> None:
    assert json.dumps(plain("x", value)) == json.dumps(value)


def test_call_arguments_are_decoded_to_objects() -> None:
    def arguments(text: object) -> object:
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}]
        told = messages_of("m", [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "3"}])
        return told[0]["tool_calls"][0]["function"]["arguments"]

    assert arguments('{"a": [1]}') == {"a": [1]}
    assert arguments({"a": 1}) == {"a": 1}
    for text in ("[1]", "{", '{"a": NaN}', "[" * 50_000):
        assert arguments(text) == text
    assert [arguments(text) for text in ("", " ")] == [{}, {}], "no arguments, of which templates read the items"
    for calls in (3, [3], [{}], [{"function": 3}], [{"function": {}}]):
        told = messages_of("m", [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "3"}])
        assert told[0]["tool_calls"] == calls
