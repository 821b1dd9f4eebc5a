"""Chat without a terminal: each line of input is a question; answers are text or JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from ...plugins.errors import UsageError
from ..console.input_text import decoded
from ..console.printing import note
from ..console.result_record import lossy, record
from ..console.streams import is_reader_closed
from .dialogue import Dialogue

if TYPE_CHECKING:
    from ...engines import Engine, SamplingParams

_MAX_BYTES = 2**24  # of a line: more than any context holds, and a pipe may contain no newline


def talk(
    engine: Engine,
    dialogue: Dialogue,
    params: SamplingParams,
    num_speculative_tokens: int | Literal["auto"] | None,
    draft: str | None,
    *,
    as_json: bool,
) -> None:
    """Answer every question of standard input, until it ends or nobody reads the output."""
    for question in _questions():
        if dropped := dialogue.ask(question):
            turns = "turn was" if dropped == 1 else "turns were"
            note(f"warning: the context is full; the oldest {dropped} {turns} dropped")
        stream = engine.stream_chat(
            dialogue.messages, params, num_speculative_tokens=num_speculative_tokens, draft=draft
        )
        for delta in stream:
            _print("" if as_json else delta.text)
            if is_reader_closed():
                return
        _print(json.dumps(record(stream.result)) + "\n" if as_json else "\n")
        if lossy_note := lossy(stream.result.acceptance):
            note(lossy_note)
        dialogue.answer(stream.result.text)


def _questions() -> Iterator[str]:
    """Yield the non-empty lines of standard input, each a question. Raises ``UsageError`` for invalid UTF-8."""
    if sys.stdin is None:
        return
    number = 0
    while line := sys.stdin.buffer.readline(_MAX_BYTES + 1):
        number += 1
        if len(line) > _MAX_BYTES:
            raise UsageError(
                f"line {number} of standard input is longer than {_MAX_BYTES // 2**20} MiB",
                why="no supported model has a context of that length",
                fix="pipe in one question per line",
            )
        if question := decoded(f"line {number} of standard input", line).strip():
            yield question


def _print(text: str) -> None:
    print(text, end="", flush=True)
