"""Tool calls in answers: the formats of models, in pieces of any size, and text that only resembles a call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.answer_styles.tagged_calls import ToolCallReader

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}},
            },
        },
    }
]
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>'
CODER = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
PARSED = ("weather", {"city": "Köln", "days": 3})


def read(text: str, sizes: list[int] | None = None, most: int | None = None) -> tuple[str, list[tuple[str, Any]]]:
    """Return the text and the calls of an answer that arrives in pieces of these sizes."""
    reader, said, calls, begin = ToolCallReader(TOOLS, most), "", list[Any](), 0
    for size in [*(sizes or []), len(text)]:
        piece, begin = text[begin : begin + size], begin + size
        told, found = reader.push(piece, is_last=begin >= len(text))
        said, calls = said + told, calls + found
        if begin >= len(text):
            break
    assert [call.at for call in calls] == list(range(len(calls)))
    return said, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("call", [HERMES, CODER])
@given(sizes=st.lists(st.integers(1, 9), max_size=60))
def test_both_call_formats_are_parsed_for_any_chunking(call: str, sizes: list[int]) -> None:
    assert read(call, sizes) == ("", [PARSED])
    assert read(f"I ask.\n{call}\n{call}", sizes) == ("I ask.\n", [PARSED, PARSED])
    assert read(call.removesuffix("</tool_call>"), sizes) == ("", [PARSED]), "the end of the text ends it"
    assert read(f"{call}\n{call}", sizes, most=1) == ("", [PARSED])


@given(sizes=st.lists(st.integers(1, 9), max_size=60))
def test_a_call_has_its_place_in_the_visible_text(sizes: list[int]) -> None:
    text, reader, said, places, begin = f"I ask.\n{HERMES}\nAgain.\n{HERMES}", ToolCallReader(TOOLS), "", list[int](), 0
    for size in [*sizes, len(text)]:
        told, calls = reader.push(text[begin : begin + size], is_last=begin + size >= len(text))
        said, places, begin = said + told, [*places, *(each.after for each in calls)], begin + size
        if begin >= len(text):
            break
    assert [said[:place] for place in places] == ["I ask.\n", "I ask.\nAgain.\n"]


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    """Models cut emoji in two; UTF-8, in which answers are sent, has no such character, and clients fail on one."""
    text = '<tool_call>{"name": "weather", "arguments": {"a\\ud83d": "\\udc00b\\ud83d\\ude00"}}</tool_call>'
    assert read(text)[1] == [("weather", {"a\ufffd": "\ufffdb\U0001f600"})]
    said, calls = read('<tool_call>{"name": "\\ud83d"}</tool_call>')
    assert (calls, "tool_call" in said) == ([], True)


@given(
    parts=st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", "<tool", "{", '{"name": 3}', "a", "<", "\n", "[1]"])
    ),
    sizes=st.lists(st.integers(1, 5), max_size=40),
)
def test_non_call_is_text_and_nothing_is_lost(parts: list[str], sizes: list[int]) -> None:
    text = "".join(parts)
    assert read(text, sizes) == (text, [])


@pytest.mark.parametrize(
    "inner",
    [
        "", "{}", "[]", "3", "null", '{"name": ""}', '{"name": "f", "arguments": 3}', '{"name": "f", "arguments": "x"}',
        '{"name": "f", "arguments": {"a": NaN}}', '{"name": "f"} and more', "<function=>", "<function= ></function>",
        "[" * 100_000, "<function=f", '{"arguments": {}}',
    ],
)  # fmt: skip
def test_empty_call_is_text(inner: str) -> None:
    text = f"<tool_call>{inner}</tool_call>"
    assert read(text) == (text, [])


def test_a_call_in_tags_that_is_truncated_is_text() -> None:
    """Otherwise, a client would run it with the parameters that happen to be there."""
    call = "<tool_call>\n<function=f>\n<parameter=a>\nrm -r /tmp/a\n</parameter>\n</function>"
    assert read(call) == ("", [("f", {"a": "rm -r /tmp/a"})])
    for end in range(1, len(call)):
        assert read(call[:end]) == (call[:end], [])


@pytest.mark.parametrize("tags", ["</tool_call>", "</parameter>", "</function>\n</tool_call>", "<parameter=city>"])
@given(sizes=st.lists(st.integers(1, 9), max_size=60))
def test_json_of_an_enforced_call_may_contain_the_tags(tags: str, sizes: list[int]) -> None:
    more = {"a": f"1 {tags} 2"}
    parameters = f"<parameter=more>\n{json.dumps(more)}\n</parameter>\n<parameter=city>\nK\n</parameter>\n"
    text = f"<tool_call>\n<function=weather>\n{parameters}</function>\n</tool_call>"
    reader, calls, begin = ToolCallReader(TOOLS, are_certain=True), list[Any](), 0
    for size in [*sizes, len(text)]:
        said, found = reader.push(text[begin : begin + size], is_last=begin + size >= len(text))
        calls, begin = calls + found, begin + size
        assert said == ""
        if begin >= len(text):
            break
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", {"more": more, "city": "K"})]


def test_parameters_have_the_declared_types() -> None:
    written = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n"
        for key, value in (("city", "3"), ("days", "three"), ("more", '{"a": [1]}'), ("other", "5"))
    )
    found = {"city": "3", "days": "three", "more": {"a": [1]}, "other": "5"}
    assert read(f"<tool_call><function=weather>{written}</function></tool_call>") == ("", [("weather", found)])
    assert read("<tool_call><function=g><parameter=a>\n\n x\n\n</parameter></function></tool_call>") == (
        "", [("g", {"a": "\n x\n"})],
    )  # fmt: skip
    assert read('<tool_call>{"name": "g"}</tool_call>') == ("", [("g", {})])
