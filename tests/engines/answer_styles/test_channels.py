"""Answers in channels, in pieces of any size: reasoning, text, calls, and text without channels."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.answer_styles import Thought
from peagle.engines.answer_styles.channels import STYLE, ChannelReader

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in ("weather", "f.g")]
THINK = "<|channel|>analysis<|message|>Warm?\n <b> 1 < 2<|end|>"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "K\u00f6ln"}'
PARSED = ("weather", {"city": "K\u00f6ln"})
FINAL = "<|channel|>final<|message|>It is **warm**. <|x|>"
ROLE = "<|start|>assistant"


def read(text: str, sizes: list[int] | None = None, most: int | None = None) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return the reasoning, text and calls of an answer that arrives in pieces of these sizes."""
    reader, thought, said, calls, begin = ChannelReader(TOOLS, most), "", "", list[Any](), 0
    for size in [*(sizes or []), len(text) + 1]:
        piece, begin = text[begin : begin + size], begin + size
        told, found = reader.push(piece, is_last=begin >= len(text))
        thought, said, calls = (
            thought + "".join(each.text for each in reader.take_thoughts()),
            said + told,
            calls + found,
        )
        if begin >= len(text):
            break
    assert [call.at for call in calls] == list(range(reader.count))
    return thought, said, [(call.name, json.loads(call.arguments)) for call in calls]


@given(sizes=st.lists(st.integers(1, 12), max_size=60))
def test_channels_are_separated_for_any_chunking(sizes: list[int]) -> None:
    thought, warm = "Warm?\n <b> 1 < 2", "It is **warm**. <|x|>"
    assert read(THINK + ROLE + FINAL, sizes) == (thought, warm, [])
    assert read(THINK + ROLE + CALL, sizes) == (thought, "", [PARSED])
    assert read(f"{CALL}<|call|>{ROLE}{CALL}", sizes) == ("", "", [PARSED] * 2)
    assert read(f"{CALL}<|call|>{ROLE}{CALL}", sizes, most=1) == ("", "", [PARSED])
    in_role = ' to=functions.f.g<|channel|>commentary json<|message|>{"a": 1}'
    assert read(in_role, sizes) == ("", "", [("f.g", {"a": 1})])
    preamble = "<|channel|>commentary<|message|>I look.<|end|>"
    assert read(preamble + ROLE + CALL, sizes) == ("", "I look.", [PARSED])


@given(sizes=st.lists(st.integers(1, 12), max_size=60))
def test_order_of_parts_is_the_same_for_any_chunking(sizes: list[int]) -> None:
    preamble = "<|channel|>commentary<|message|>I look.<|end|>"
    text = preamble + ROLE + THINK + ROLE + CALL + "<|call|>" + ROLE + THINK + ROLE + FINAL
    reader, places, begin = ChannelReader(TOOLS), list[tuple[tuple[int, int, int], str]](), 0
    for size in [*sizes, len(text)]:
        piece, begin = text[begin : begin + size], begin + size
        _, calls = reader.push(piece, is_last=begin >= len(text))
        places += [(each.place, each.text) for each in reader.take_thoughts()]
        places += [(each.place, each.name) for each in calls]
        if begin >= len(text):
            break
    after = len("I look.")
    thoughts = {place: "".join(text for at, text in places if at == place) for place, _ in places}
    thought = "Warm?\n <b> 1 < 2"
    assert thoughts == {(after, 0, 0): thought, (after, 0, 1): "weather", (after, 1, 0): thought}


@given(
    parts=st.lists(
        st.sampled_from(
            ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "analysis", "final", "a", "<|", "to="]
        )
    ),
    sizes=st.lists(st.integers(1, 5), max_size=40),
)
def test_any_text_terminates_and_chunking_is_irrelevant(parts: list[str], sizes: list[int]) -> None:
    text = "".join(parts)
    assert read(text, sizes) == read(text)


@pytest.mark.parametrize("text", ["t", "to", "to=5", "<", "<|", " to", "<=", "true"])
@given(sizes=st.lists(st.integers(1, 3), max_size=4))
def test_short_text_that_resembles_a_header_is_visible(text: str, sizes: list[int]) -> None:
    assert read(text, sizes) == ("", text, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Plain text, as under a form.", ("", "Plain text, as under a form.", [])),
        ('{"a": "<b>"}', ("", '{"a": "<b>"}', [])),
        ("<|channel|>analysis<|message|>cut sh", ("cut sh", "", [])),
        ("<|channel|>analysis<|mes", ("", "", [])),
        ("<|channel|>commentary to=python<|message|>print(1)", ("print(1)", "", [])),
        ("<|channel|>commentary to=functions.gone<|message|>{}", ("{}", "", [])),
        ('<|channel|>commentary to=functions.weather<|message|>{"city"', ("", '{"city"', [])),
        (
            '<|channel|>commentary to=functions.weather<|message|>{"city": "a\\ud83d"}',
            ("", "", [("weather", {"city": "a\ufffd"})]),
        ),
        ("<|channel|>" + "x" * 400 + "<|message|>y", ("", "x" * 400 + "<|message|>y", [])),
        ("", ("", "", [])),
    ],
)
def test_truncated_or_unchanneled_text_is_handled(text: str, expected: tuple[str, str, list[Any]]) -> None:
    assert read(text) == expected


def test_visible_text_streams_immediately() -> None:
    reader = ChannelReader(TOOLS)
    assert reader.push("<|channel|>analysis<|message|>So", is_last=False) == ("", [])
    assert reader.take_thoughts() == [Thought("So")]
    assert reader.push(f"<|end|>{ROLE}<|channel|>final<|message|>Hel", is_last=False) == ("Hel", [])
    assert reader.push("lo", is_last=False) == ("lo", [])


def test_whole_answer_equals_the_visible_text() -> None:
    assert STYLE.spoken(THINK + ROLE + FINAL, in_thought=False) == "It is **warm**. <|x|>"
