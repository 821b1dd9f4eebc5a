"""Formats of tool calls and reasoning that models are trained on, detected from their chat templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from . import channels
from .channels import ChannelReader
from .llama_calls import LlamaCallReader
from .tool_calls import CLOSE, OPEN, TAG, Thought, ToolCall, ToolCallReader

Style = Literal["json", "tags", "llama", "channels"]
DEFAULT_STYLE: Style = "json"  # of calls, for models without a style


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
    """Return the style of a model with these templates; None if they have no format of calls and reasoning."""
    sources = [*templates]
    if any(channels.CHANNEL in source and channels.MESSAGE in source for source in sources):
        return "channels"
    knowing = [source for source in sources if "tools" in source]
    if any(OPEN in source for source in knowing):
        return "tags" if any(OPEN in source and TAG in source for source in sources) else "json"
    if any('{"name": ' in source and '"parameters": ' in source and "ipython" in source for source in knowing):
        return "llama"
    return None


def shows_special(style: Style | None, hidden: Mapping[str, bool], *, has_tools: bool) -> bool:
    """Return True if the text of an answer must include special tokens, because they separate its parts.

    ``hidden`` maps added tokens to whether decoded text usually omits them.
    """
    if style == "channels":
        return True
    return has_tools and style != "llama" and any(hidden.get(each) for each in (OPEN, CLOSE))


def reader_of(
    style: Style | None, tools: Sequence[Mapping[str, Any]], max_calls: int | None, *, are_certain: bool
) -> AnswerReader | None:
    """Return a reader for answers of this style, or None for plain text. The other arguments are the reader's.

    Without a style, calls have the default form, which is that of "json".
    """
    if style == "channels":
        return ChannelReader(tools, max_calls)
    if not tools:
        return None
    if style == "llama":
        return LlamaCallReader(tools, max_calls)
    return ToolCallReader(tools, max_calls, are_certain=are_certain)
