"""The ways in which models were taught to call tools, and to say what they think; known by their chat templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from . import channels
from .channels import ChannelReader
from .llama_calls import LlamaCallReader
from .tool_calls import CLOSE, OPEN, TAG, ToolCall, ToolCallReader

Style = Literal["json", "tags", "llama", "channels"]
READ = "Hermes, Qwen3, Qwen3-Coder, Llama 3, GPT-OSS"  # those whose calls are read


class AnswerReader(Protocol):
    """Parts the text of one answer, as it grows; ``count`` calls were told."""

    count: int

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Return what is said, and the calls that are whole, with ``text`` after what came before."""
        ...

    def take_thought(self) -> str:
        """Return what was thought since the last call, where that is told apart."""
        ...


def style_of(templates: Iterable[str]) -> Style | None:
    """The style of a model with these templates; None for one whose answers are text and nothing else."""
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
    """Whether calls can be read; ``hidden`` says of added tokens which of them a text leaves out."""
    return style is not None and not (style in ("json", "tags") and any(hidden.get(each) for each in (OPEN, CLOSE)))


def reader_of(
    style: Style | None, tools: Sequence[Mapping[str, Any]], most: int | None, *, are_certain: bool
) -> AnswerReader | None:
    """What reads an answer; None where it is text. ``tools``, ``most`` and ``are_certain`` are the readers' own."""
    if style == "channels":
        return ChannelReader(tools, most)
    if not tools:
        return None
    if style == "llama":
        return LlamaCallReader(tools, most)
    return ToolCallReader(tools, most, are_certain=are_certain)
