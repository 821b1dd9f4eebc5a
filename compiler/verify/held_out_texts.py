"""Texts to measure precision on: bundled held-out texts, which no calibration uses, or the user's file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...plugins.errors import UsageError
from ..precision.calibration.dataset import SampleLimits, read_jsonl
from ..precision.calibration.encoder import Encoder

HELD_OUT = Path(__file__).parent.parent / "bundled" / "texts" / "held_out.jsonl"
MAX_TEXTS, MAX_LENGTH = 64, 512
MIN_TOKENS = 32
_PROMPT = 48  # tokens per prompt


@dataclass(frozen=True)
class Texts:
    """Token ids of the texts, and the name of the set."""

    name: str
    ids: tuple[tuple[int, ...], ...]

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """Prompts to continue: the first tokens of each text and of its second half."""
        pieces = [piece for text in self.ids for piece in (text[: len(text) // 2], text[len(text) // 2 :])]
        return tuple(piece[:_PROMPT] for piece in pieces)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest text."""
        return max(map(len, self.ids))

    def first(self, count: int, length: int) -> Texts:
        """Return the first ``count`` texts, cut to ``length`` tokens."""
        return Texts(self.name, tuple(text[:length] for text in self.ids[:count]))


def read_texts(data: Path | None, tokenizer: Path, vocab_size: int, max_seq_len: int) -> Texts:
    """Read the texts of ``data`` (JSON Lines with text, messages or input_ids), or the bundled ones if it is None.

    ``tokenizer`` is a folder. Texts are truncated to the engine's length limit. Raises ``UsageError`` for a malformed
    line and for too little text.
    """
    if data is not None and not os.path.isfile(data):  # Path.is_file raises for a name that is too long
        raise UsageError(f"--data {data} does not exist or is not a file", fix="pass an existing JSON Lines file")
    limits = SampleLimits(
        MAX_TEXTS, max(min(MAX_LENGTH, max_seq_len - 1), 1), min_tokens=1
    )  # leaves room for one generated token
    samples = read_jsonl(data or HELD_OUT, Encoder.open(tokenizer), vocab_size, limits)
    ids = tuple(text for text in samples.ids if len(text) > 1)
    if sum(map(len, ids)) < MIN_TOKENS:
        raise UsageError(
            f"{data or HELD_OUT} has too little text to measure precision: {sum(map(len, ids))} tokens",
            why=f"a measurement needs at least {MIN_TOKENS} tokens",
            fix="add text similar to what the engine will process",
        )
    return Texts("the bundled held-out texts" if data is None else str(data), ids)
