"""Initializers cut from a stack of matrices while it is streamed: some rows of each matrix, transposed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..plugins.errors import BuildError

Array = np.ndarray[Any, Any]
_TILE = 16  # rows transposed at a time: the columns of all rows together exceed the CPU cache


@dataclass(frozen=True)
class Cut:
    """Some rows of each matrix ``[rows, columns]`` in the stack ``source``, transposed: from ``first``, by ``step``.

    ``one``: these rows are all equal, and one of them is used.
    """

    source: str
    rows: int
    columns: int
    first: int = 0
    step: int = 1
    one: bool = False

    def of(self, stack: Array) -> Array:
        """Cut ``[n, rows, columns]`` to ``[n, columns, rows / step]``. ``BuildError`` if ``one`` does not hold."""
        cut = stack[:, self.first :: self.step]
        if self.one:
            if not np.array_equal(cut, np.broadcast_to(cut[:, :1], cut.shape)):
                raise BuildError(
                    f"the rows of {self.source} differ",
                    why="all rows of a matrix must have the same scale",
                    fix="use a checkpoint with one scale per matrix",
                )
            cut = cut[:, :1]
        raw = cut.view(np.dtype(f"u{cut.dtype.itemsize}"))  # ml_dtypes types are copied element by element
        count, rows, columns = raw.shape
        transposed = np.empty((count, columns, rows), raw.dtype)
        for at in range(0, rows, _TILE):
            transposed[:, :, at : at + _TILE] = raw[:, at : at + _TILE].swapaxes(1, 2)
        return transposed.view(stack.dtype)


def whole_matrices(runs: Iterable[Array], rows: int, columns: int) -> Iterator[Array]:
    """Yield a stack from consecutive runs of its values: some matrices at a time, ``[n, rows, columns]``."""
    size, rest, count = rows * columns, list[Array](), 0
    for run in runs:
        rest.append(run.reshape(-1))
        count += run.size
        num_whole = count // size * size
        if num_whole:
            values = rest[0] if len(rest) == 1 else np.concatenate(rest)
            yield values[:num_whole].reshape(-1, rows, columns)
            rest, count = [values[num_whole:]] if num_whole < count else [], count - num_whole
    if rest:
        raise BuildError(
            "a stack of matrices is truncated",
            why=f"the last matrix has {count} of {size} values",
            fix="download the checkpoint again",
        )
