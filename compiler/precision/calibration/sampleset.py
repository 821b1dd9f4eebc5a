"""The token sequences that a target is calibrated with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ....plugins.errors import UsageError


@dataclass(frozen=True)
class Samples:
    """Sequences of token ids, in an order that their content decides, whatever order they were given in.

    ``name`` says where they come from; ``warnings`` what was done to them.
    """

    name: str
    ids: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, name: str, sequences: Iterable[Sequence[int]], warnings: Iterable[str] = ()) -> Samples:
        """The sequences, put in order. Raises ``UsageError`` if there is none or one is empty."""
        ids = [tuple(int(token) for token in sequence) for sequence in sequences]
        if not ids or not all(ids):
            raise UsageError(
                f"{name} has no sample" if not ids else f"{name} has a sample without tokens",
                why="calibration measures what texts do inside the model",
                fix="give at least one text that is not empty",
            )
        return cls(name, tuple(sorted(ids, key=lambda each: (_digest(each), each))), tuple(warnings))

    @cached_property
    def digest(self) -> str:
        """Content hash of all sequences."""
        return hashlib.sha256("".join(map(_digest, self.ids)).encode()).hexdigest()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return tuple(len(each) for each in self.ids)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(self.lengths)

    def check(self, vocab_size: int) -> None:
        """Raise ``UsageError`` if a token id is not one of the model's."""
        wrong = sorted({token for each in self.ids for token in each if not 0 <= token < vocab_size})
        if wrong:
            raise UsageError(
                f"{self.name} has token ids that the model does not have: {', '.join(map(str, wrong[:5]))}",
                why=f"ids go from 0 to {vocab_size - 1}",
                fix="tokenize the samples with the tokenizer of this model",
            )


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(ids, "<i8").tobytes()).hexdigest()
