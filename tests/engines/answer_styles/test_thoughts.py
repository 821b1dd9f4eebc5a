"""Answers with reasoning between tags, in pieces of any size, before text and calls of every style."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.answer_styles import DEFAULT, STYLES, AnswerStyle, style_of
from peagle.engines.answer_styles.thoughts import TAGS, ThoughtReader, ThoughtTags, tags_of
from tests.chat_templates import CHATML, LLAMA3, QWEN3, R1

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]
CALLS = {
    "json": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "tags": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "llama": '{"name": "f", "parameters": {"a": 1}}',
}
THINK = TAGS[0]
Read = tuple[str, str, list[tuple[str, Any]]]


def read(
    text: str,
    sizes: Sequence[int] = (),
    style: AnswerStyle = DEFAULT,
    *,
    tools: Sequence[dict[str, Any]] = TOOLS,
    in_thought: bool = False,
) -> Read:
    """The reasoning, text and calls of an answer that arrives in pieces of these sizes."""
    reader = replace(style, thoughts=THINK).reader_of(tools, in_thought=in_thought)
    assert reader is not None
    thought, said, calls, begin = "", "", list[Any](), 0
    for size in [*sizes, len(text) + 1]:
        piece, begin = text[begin : begin + size], begin + size
        told, found = reader.push(piece, is_last=begin >= len(text))
        said, calls = said + told, calls + found
        thought += "".join(each.text for each in reader.take_thoughts())
        if begin >= len(text):
            break
    assert reader.count == len(calls)
    return thought, said, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("style", CALLS)
@given(sizes=st.lists(st.integers(1, 12), max_size=60))
def test_calls_follow_reasoning_in_any_pieces(style: str, sizes: list[int]) -> None:
    text = f"<think>\nWarm?\n\n{CALLS[style]}\n</think>\n\n{CALLS[style]}"
    thought = f"Warm?\n\n{CALLS[style]}"
    made = ("f", {"a": "1"}) if style == "tags" else ("f", {"a": 1})
    assert read(text, sizes, STYLES[style]) == (thought, "", [made])
    assert read(text.removeprefix("<think>\n"), sizes, STYLES[style], in_thought=True) == (thought, "", [made])


@given(
    parts=st.lists(
        st.sampled_from(
            ["<think>", "</think>", "\n", " ", "So.", "</thin", "k>", "<th", "<", CALLS["json"], "<tool_", "\n\nwarm"]
        )
    ),
    sizes=st.lists(st.integers(1, 9), max_size=60),
    in_thought=st.booleans(),
    has_tools=st.booleans(),
)
def test_pieces_of_any_size_give_what_the_whole_text_gives(
    parts: list[str], sizes: list[int], in_thought: bool, has_tools: bool
) -> None:
    text, tools = "".join(parts), TOOLS if has_tools else []
    thought, said, calls = whole = read(text, tools=tools, in_thought=in_thought)
    assert read(text, sizes, tools=tools, in_thought=in_thought) == whole
    if not (in_thought or text.lstrip().startswith("<think>")):
        assert thought == ""
        assert said == text or calls
    elif "</think>" not in text:
        assert (said, calls) == ("", [])


@pytest.mark.parametrize(
    ("text", "in_thought", "expected"),
    [
        ("<think>\nSo.\n</think>\n\nWarm.\n", False, ("So.", "Warm.\n", [])),
        ("So.\n</think>\n\nWarm.", True, ("So.", "Warm.", [])),
        ("\n<think>So.</think>Warm.", True, ("So.", "Warm.", [])),  # the tag is repeated
        ("\n\n<think>\nSo.\n\nNo.</think>Warm.", False, ("So.\n\nNo.", "Warm.", [])),
        ("<think>\n\n</think>\n\nWarm.", False, ("", "Warm.", [])),
        ("</think>\n\nWarm.", True, ("", "Warm.", [])),
        ("<think>\nSo", False, ("So", "", [])),
        ("So.\n</thin", True, ("So.\n</thin", "", [])),
        ("<think>\nSo.\n</think>\n", False, ("So.", "", [])),
        ("\n Warm.", False, ("", "\n Warm.", [])),
        ("<thin", False, ("", "<thin", [])),
        ("Write <think>a</think>.", False, ("", "Write <think>a</think>.", [])),
        ("<think>a</think><think>b</think>", False, ("a", "<think>b</think>", [])),
        ("", False, ("", "", [])),
        ("", True, ("", "", [])),
        (" \n", False, ("", " \n", [])),
    ],
)
def test_reasoning_is_what_precedes_the_second_tag(text: str, in_thought: bool, expected: Read) -> None:
    assert read(text, in_thought=in_thought) == expected


def test_reasoning_and_text_stream_immediately() -> None:
    reader = ThoughtReader(THINK, None, in_thought=False)
    assert reader.push("<think>\nSo it", is_last=False) == ("", [])
    assert [each.text for each in reader.take_thoughts()] == ["So it"]
    assert reader.push(" is.\n</think>\n\nIt", is_last=False) == ("It", [])
    assert [each.text for each in reader.take_thoughts()] == [" is."]
    assert reader.push(" is\n", is_last=False) == (" is\n", [])
    assert reader.take_thoughts() == []


def test_tags_are_detected_from_the_template_for_any_style() -> None:
    reads_no_switch = replace(THINK, switch="")
    assert [tags_of([each]) for each in (CHATML, LLAMA3, QWEN3, R1)] == [None, None, THINK, reads_no_switch]
    assert tags_of([CHATML, QWEN3]) == THINK
    assert [tags_of([f"{CHATML}{tag}"]) for tag in ("<think>", "</think>")] == [reads_no_switch] * 2
    llama_that_thinks = style_of([f"{LLAMA3}{{# </think> #}}"])
    assert (llama_that_thinks.name, llama_that_thinks.thoughts) == (STYLES["llama"].name, reads_no_switch)
    channels = style_of(["<|channel|><|message|></think>"])
    assert channels is STYLES["channels"], "its reader reads reasoning itself"


def test_a_prompt_opens_reasoning_with_its_end() -> None:
    assert THINK.is_open_after("assistant\n<think>\n")
    assert not THINK.is_open_after("What is <think>?\nassistant\n")
    assert not THINK.is_open_after("<think>\n\n</think>\n\n")
    assert [THINK.closed(f"a<think>{end}") for end in ("", "\n")] == ["a<think>\n\n</think>\n\n"] * 2
    assert THINK.closed("a<think>\nWarm\n") == "a<think>\nWarm\n</think>\n\n"
    assert [THINK.is_open_in(text) for text in ("<think>So", "\n<think>", "So", "<think>So</think>Warm")] == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("in_thought", [True, False])
def test_whole_answer_is_spoken_without_its_reasoning(in_thought: bool) -> None:
    style = replace(DEFAULT, thoughts=replace(THINK, is_opened=not in_thought))
    assert style.spoken("<think>\nSo.\n</think>\n\nWarm.", in_thought=in_thought) == "Warm."
    assert style.spoken("So.\n</think>\n\nWarm.", in_thought=in_thought) == (
        "Warm." if in_thought else "So.\n</think>\n\nWarm."
    )
    assert style.spoken("Warm.", in_thought=in_thought) == ("" if in_thought else "Warm.")


def test_tags_that_decoding_omits_are_shown() -> None:
    style = replace(DEFAULT, thoughts=ThoughtTags("[THINK]", "[/THINK]"))
    assert style.shows_special({"[/THINK]": True}, has_tools=False)
    assert not style.shows_special({"[/THINK]": False}, has_tools=False)
