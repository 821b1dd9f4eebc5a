"""The texts that a precision is measured on: bundled ones that nothing was calibrated with, or a file of the user's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...plugins.errors import UsageError
from ..precision.calibration.dataset import SampleLimits, read_jsonl
from ..precision.calibration.encoder import Encoder

HELD_OUT = Path(__file__).parent.parent / "bundled" / "texts" / "held_out.jsonl"
MAX_TEXTS, MAX_LENGTH = 64, 512
LEAST_TOKENS = 32
_PROMPT = 48  # tokens of a text that are continued


@dataclass(frozen=True)
class Texts:
    """Token ids of every text, and the name of the set."""

    name: str
    ids: tuple[tuple[int, ...], ...]

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """The prompts to continue: a piece from the beginning of each text, and one from its middle."""
        pieces = [piece for text in self.ids for piece in (text[: len(text) // 2], text[len(text) // 2 :])]
        return tuple(piece[:_PROMPT] for piece in pieces)

    @property
    def longest(self) -> int:
        """How many tokens the longest text has."""
        return max(map(len, self.ids))

    def first(self, count: int, length: int) -> Texts:
        """Return the first ``count`` texts, cut to ``length`` tokens."""
        return Texts(self.name, tuple(text[:length] for text in self.ids[:count]))


def read_texts(data: Path | None, tokenizer: Path, vocab_size: int, max_seq_len: int) -> Texts:
    """Read the texts of ``data`` (JSON Lines with text, messages or input_ids), else the bundled ones.

    ``tokenizer`` is the folder that has it. Texts are cut to what the engine holds. Raises ``UsageError`` for a line
    that is malformed and for too little text.
    """
    if data is not None and not os.path.isfile(data):  # Path.is_file raises for a name that is too long
        raise UsageError(f"--data {data} is not a file", fix="name a JSON Lines file that is there")
    limits = SampleLimits(MAX_TEXTS, max(min(MAX_LENGTH, max_seq_len - 1), 1), min_tokens=1)  # a pass has one more
    samples = read_jsonl(data or HELD_OUT, Encoder.open(tokenizer), vocab_size, limits)
    ids = tuple(text for text in samples.ids if len(text) > 1)
    if sum(map(len, ids)) < LEAST_TOKENS:
        raise UsageError(
            f"{data or HELD_OUT} has too little text to measure with: {sum(map(len, ids))} tokens",
            why=f"fewer than {LEAST_TOKENS} say nothing about others",
            fix="give more text, like that which the engine will serve",
        )
    return Texts("the bundled held-out texts" if data is None else str(data), ids)
