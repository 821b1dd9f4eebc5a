"""Blocks of an answer: the same for any pieces of text, in order, and never blank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.answer_styles import Thought, ToolCall
from peagle.engines.answer_styles.channels import ChannelReader
from peagle.engines.answer_styles.tagged_calls import ToolCallReader
from peagle.engines.serving.blocks import AnswerBlocks, BlockStep
from peagle.engines.serving.rendering import ReportedTokens

CALL = '<tool_call>{"name": "f"}</tool_call>'
THOUGHT, SAID = "<|channel|>analysis<|message|>Why?<|end|>", "<|channel|>commentary<|message|>So.\n<|end|>"
TO_F = "<|channel|>commentary to=functions.f<|message|>{}<|call|>"
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]


def tokens(
    text: str = "",
    *,
    calls: Sequence[ToolCall] = (),
    thoughts: Sequence[Thought] = (),
    reason: str | None = None,
    offset: int = 0,
) -> ReportedTokens:
    return ReportedTokens(0, (), 1, text, (), (), reason, None, calls, thoughts, offset)


def read(reader: ToolCallReader | ChannelReader, text: str, sizes: Sequence[int]) -> list[BlockStep]:
    """Return the steps of an answer that arrives in pieces of these sizes."""
    blocks, steps, begin, shown = AnswerBlocks(), list[BlockStep](), 0, 0
    for size in [*sizes, len(text)]:
        is_last = begin + size >= len(text)
        said, calls = reader.push(text[begin : begin + size], is_last=is_last)
        reason = "stop" if is_last else None
        steps += blocks.steps(tokens(said, calls=calls, thoughts=reader.take_thoughts(), reason=reason, offset=shown))
        begin, shown = begin + size, shown + len(said)
        if is_last:
            break
    return steps


def folded(steps: Sequence[BlockStep]) -> list[tuple[str, str]]:
    """The blocks that the steps build up; each is closed before the next opens."""
    found, is_open = list[tuple[str, str]](), False
    for step in steps:
        if step.change == "opens":
            assert not is_open
            found.append((step.block.kind, ""))
            is_open = True
        else:
            assert is_open
            assert step.block.index == len(found) - 1
            found[-1] = (found[-1][0], found[-1][1] + step.text)
            is_open = step.change == "grows"
            assert is_open or step.block.text == found[-1][1]
    assert not is_open
    return found


@given(
    parts=st.lists(st.sampled_from([CALL, "One. ", "\n", " two", "<tool", "\n\n"]), max_size=8),
    sizes=st.lists(st.integers(1, 9), max_size=80),
)
def test_blocks_of_calls_do_not_depend_on_the_pieces(parts: list[str], sizes: list[int]) -> None:
    text = "".join(parts)
    found = folded(read(ToolCallReader(TOOLS), text, sizes))
    assert found == folded(read(ToolCallReader(TOOLS), text, []))
    assert [kind for kind, _ in found].count("call") == parts.count(CALL)
    if CALL not in parts:
        assert "".join(each for _, each in found) == text
    else:
        assert all(each.strip() for _, each in found)


@given(
    parts=st.lists(st.sampled_from([THOUGHT, SAID, TO_F]), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 40), max_size=80),
)
def test_blocks_of_channels_keep_their_order(parts: list[str], sizes: list[int]) -> None:
    text = "<|start|>assistant".join(parts)
    found = folded(read(ChannelReader(TOOLS), text, sizes))
    kinds = [{THOUGHT: "thought", SAID: "text", TO_F: "call"}[each] for each in parts]
    assert [kind for kind, _ in found] == [
        kind for at, kind in enumerate(kinds) if kind == "call" or kind != ["", *kinds][at]
    ]


def test_hidden_thoughts_leave_no_block() -> None:
    blocks = AnswerBlocks(shows_thoughts=False)
    thought = Thought("Why?")
    assert folded([*blocks.steps(tokens("So.", thoughts=[thought], reason="stop"))]) == [("text", "So.")]


@pytest.mark.parametrize(
    ("reason", "is_cut"), [("stop", False), ("tool_calls", False), ("length", True), ("abort", True)]
)
def test_a_block_that_a_limit_ends_is_cut(reason: str, is_cut: bool) -> None:
    blocks = AnswerBlocks()
    call = ToolCall(0, "f", "{}", after=4)
    list(blocks.steps(tokens("One.", calls=[call])))
    list(blocks.steps(tokens("Two", reason=reason, offset=4)))
    assert [each.is_cut for each in blocks.blocks] == [False, False, is_cut]


def test_a_blank_answer_is_kept() -> None:
    blocks = AnswerBlocks()
    steps = [*blocks.steps(tokens("\n")), *blocks.steps(tokens(" ", reason="length"))]
    assert folded(steps) == [("text", "\n ")]
