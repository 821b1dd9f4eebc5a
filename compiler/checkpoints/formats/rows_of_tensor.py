"""Some rows of a stored tensor, as a tensor of their own: what a fused one is made of."""

from __future__ import annotations

from dataclasses import dataclass

from ..safetensors import TensorEntry
from .base import StoredTensor
from .stored_numbers import Array


@dataclass(frozen=True)
class RowsOfTensor:
    """The rows ``begin`` to ``end`` of ``whole``, wide whatever stores them."""

    whole: StoredTensor
    begin: int
    end: int

    @property
    def entry(self) -> TensorEntry:
        return self.whole.entry

    @property
    def granule(self) -> int:
        return self.whole.granule

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.end - self.begin, *self.whole.shape[1:])

    def rows(self, begin: int, end: int) -> Array:
        return self.whole.rows(self.begin + begin, self.begin + end)
