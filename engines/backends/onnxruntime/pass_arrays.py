"""Arrays for passes over any number of rows and columns, dense in every shape and backed by the same memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ....plugins.graph_contract import TENSORS, WIDE
from ....plugins.op_spec import evaluate_dim
from .memory import Arrays
from .sessions import Sessions


class PassArrays:
    """Inputs and outputs of a pass, without caches, for any number of rows and columns up to the maximum."""

    def __init__(self, names: Sequence[str], rows: int, columns: int, emitted: int, sessions: Sessions) -> None:
        self._most = {"B": rows, "S": columns, "E": emitted, "F": sessions.features, "C": sessions.candidates}
        self._flat = {name: np.zeros(math.prod(self._sizes(name, self._most)), self._dtype(name)) for name in names}
        if "forced_next" in self._flat:
            self._flat["forced_next"][:] = -1
        self._made: dict[tuple[int, int, int], Arrays] = {}

    def of(self, rows: int, columns: int, emitted: int) -> Arrays:
        """Return dense views of this shape at the start of every array; the memory is always the same."""
        shape = rows, columns, emitted
        if shape not in self._made:
            dims = self._most | dict(zip("BSE", shape, strict=True))
            sizes = {name: self._sizes(name, dims) for name in self._flat}
            self._made[shape] = {n: flat[: math.prod(sizes[n])].reshape(sizes[n]) for n, flat in self._flat.items()}
        return self._made[shape]

    @staticmethod
    def _sizes(name: str, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(evaluate_dim(dim, dims) for dim in TENSORS[name].dims)

    @staticmethod
    def _dtype(name: str) -> str:
        dtype = TENSORS[name].dtype
        return "float32" if dtype == WIDE else dtype
