"""An answer as a sequence of blocks (reasoning, text, tool calls) that open, grow and close, whole or streamed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..answer_styles import Thought, ToolCall
from .rendering import ReportedTokens

Kind = Literal["thought", "text", "call"]


@dataclass
class AnswerBlock:
    """One block of an answer; its ``text`` grows. A call has a ``name``, and its text is JSON.

    ``is_cut`` is True if the answer reached a limit while the block was open.
    """

    index: int
    kind: Kind
    name: str = ""
    text: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    is_cut: bool = False


@dataclass(frozen=True)
class BlockStep:
    """A change of a block, as a stream reports it; ``text`` is what it grew by."""

    change: Literal["opens", "grows", "closes"]
    block: AnswerBlock
    text: str = ""


class AnswerBlocks:
    """The blocks of one answer.

    They do not depend on the pieces in which the answer arrives. Whitespace before a call or reasoning is dropped, so
    no block is blank unless the whole answer is.
    """

    def __init__(self, *, shows_thoughts: bool = True) -> None:
        self.blocks: list[AnswerBlock] = []
        self._shows_thoughts = shows_thoughts
        self._open: AnswerBlock | None = None
        self._blank = ""  # whitespace that may be followed by text

    def steps(self, tokens: ReportedTokens) -> Iterator[BlockStep]:
        """Add the next tokens of the answer, and yield the changes."""
        for part in tokens.parts():
            if isinstance(part, ToolCall):
                yield from self._opened("call", part.name)
                yield from self._grown(part.arguments)
                yield from self._closed()
            elif isinstance(part, Thought):
                if self._shows_thoughts:
                    yield from self._opened("thought")
                    yield from self._grown(part.text)
            else:
                yield from self._append_text(part)
        if tokens.finish_reason is not None:
            if self._blank and (self._open is None or self._open.kind == "text") and not self._has_calls:
                yield from self._opened("text")
                yield from self._grown(self._blank)
            if self._open is not None:
                self._open.is_cut = tokens.finish_reason not in ("stop", "tool_calls")
            yield from self._closed()

    @property
    def _has_calls(self) -> bool:
        return any(each.kind == "call" for each in self.blocks)

    def _append_text(self, text: str) -> Iterator[BlockStep]:
        text = self._blank + text
        shown = text.rstrip()
        if shown:
            yield from self._opened("text")
            yield from self._grown(shown)
        self._blank = text[len(shown) :]

    def _opened(self, kind: Kind, name: str = "") -> Iterator[BlockStep]:
        """Open a block, unless one of this kind is open."""
        if self._open is not None and self._open.kind == kind:
            return
        yield from self._closed()
        if kind != "text":
            self._blank = ""
        self._open = AnswerBlock(len(self.blocks), kind, name)
        self.blocks.append(self._open)
        yield BlockStep("opens", self._open)

    def _grown(self, text: str) -> Iterator[BlockStep]:
        if self._open is not None and text:
            self._open.text += text
            yield BlockStep("grows", self._open, text)

    def _closed(self) -> Iterator[BlockStep]:
        if self._open is not None:
            closed, self._open = self._open, None
            yield BlockStep("closes", closed)
