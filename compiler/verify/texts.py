"""The texts that a precision is measured on: bundled ones that nothing was calibrated with, or a file of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...plugins.errors import UsageError
from ..precision.calibration import Encoder, Limits, read_jsonl

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
        """A piece from the beginning of each, and one from its middle."""
        halves = [half for each in self.ids for half in (each[: len(each) // 2], each[len(each) // 2 :])]
        return tuple(half[:_PROMPT] for half in halves)

    @property
    def longest(self) -> int:
        """Tokens of the longest."""
        return max(map(len, self.ids))

    def first(self, count: int, length: int) -> Texts:
        """Fewer and shorter."""
        return Texts(self.name, tuple(each[:length] for each in self.ids[:count]))


def read_texts(data: Path | None, tokenizer: Path, vocab_size: int, max_seq_len: int) -> Texts:
    """Of ``data`` (JSON Lines with text, messages or input_ids), else the bundled ones.

    ``tokenizer`` is the folder that has it. Texts are cut to what the engine holds. Raises ``UsageError`` for a line
    that is malformed and for too little text.
    """
    if data is not None and not data.is_file():
        raise UsageError(f"--data {data} is not a file", fix="name a JSON Lines file that is there")
    limits = Limits(MAX_TEXTS, max(min(MAX_LENGTH, max_seq_len - 1), 1), min_tokens=1)  # a pass has one more
    samples = read_jsonl(data or HELD_OUT, Encoder.open(tokenizer), vocab_size, limits)
    ids = tuple(each for each in samples.ids if len(each) > 1)
    if sum(map(len, ids)) < LEAST_TOKENS:
        raise UsageError(
            f"{data or HELD_OUT} has too little text to measure with: {sum(map(len, ids))} tokens",
            why=f"fewer than {LEAST_TOKENS} say nothing about others",
            fix="give more text, like that which the engine will serve",
        )
    return Texts("the bundled held-out texts" if data is None else str(data), ids)
