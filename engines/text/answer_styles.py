"""Formats of tool calls and reasoning that models are trained on, detected from their chat templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from . import channels
from .channels import ChannelReader
from .llama_calls import LlamaCallReader
from .tool_calls import CLOSE, OPEN, TAG, Thought, ToolCall, ToolCallReader

Style = Literal["json", "tags", "llama", "channels"]
READ = "Hermes, Qwen3, Qwen3-Coder, Llama 3, GPT-OSS"  # models with a supported call format


class AnswerReader(Protocol):
    """Splits the text of one answer as it grows; ``count`` is the number of calls returned so far."""

    count: int

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Add ``text``, and return the new visible text and complete calls."""
        ...

    def take_thoughts(self) -> list[Thought]:
        """Return the reasoning since the last call, if the format marks it."""
        ...


def style_of(templates: Iterable[str]) -> Style | None:
    """Return the style of a model with these templates; None if its answers are plain text."""
    sources = [*templates]
    if any(channels.CHANNEL in source and channels.MESSAGE in source for source in sources):
        return "channels"
    knowing = [source for source in sources if "tools" in source]
    if any(OPEN in source for source in knowing):
        return "tags" if any(OPEN in source and TAG in source for source in sources) else "json"
    if any('{"name": ' in source and '"parameters": ' in source and "ipython" in source for source in knowing):
        return "llama"
    return None


def can_call(style: Style | None, hidden: Mapping[str, bool]) -> bool:
    """Return whether calls can be parsed; ``hidden`` maps added tokens to whether decoded text omits them."""
    return style is not None and not (style in ("json", "tags") and any(hidden.get(each) for each in (OPEN, CLOSE)))


def reader_of(
    style: Style | None, tools: Sequence[Mapping[str, Any]], most: int | None, *, are_certain: bool
) -> AnswerReader | None:
    """Return a reader for answers of this style, or None for plain text. The other arguments are the reader's."""
    if style == "channels":
        return ChannelReader(tools, most)
    if not tools:
        return None
    if style == "llama":
        return LlamaCallReader(tools, most)
    return ToolCallReader(tools, most, are_certain=are_certain)
