"""Rows of one weight as codes: a run of them in blocks that fit a processor's cache, however long the run is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....graphs.targets.checkpoint_pieces import Array, Shape
from ....plugins.errors import BuildError
from ....plugins.number_formats import AFFINE, NUMBER_FORMATS, Scheme
from ....plugins.number_types import E4M3, FLOAT16, powers_of_two
from ...checkpoints.formats.fp8_with_scales import Loss
from . import scale_and_least
from .codes_of_bf16 import CodesOfBf16, codes_of_bf16, is_bf16, upper_halves
from .numbers_to_codes import block_scales, magnitudes, rounded, values_of

_AT_ONCE = 2**18  # numbers: of fewer, threads spend their time waiting for the interpreter
_MANY = 2**18  # numbers: the table of one scale takes as long to make as a quarter of them to round


@dataclass(frozen=True)
class CodedRows:
    """The codes of some rows, the scales of their blocks if they have such, and what rounding them changed."""

    codes: Array
    scales: Array | None
    loss: Loss


@dataclass(frozen=True)
class Coding:
    """How rows of the weight ``name`` become codes. Nothing but the rows decides, so any thread may take any of them.

    ``block`` columns share a scale, or with 0 all rows of a group do: then its ``few`` scales are known already.
    ``importance``, [blocks, columns], is what an error in each column counts. The recipe computes in ``wide``.
    """

    name: str
    shape: Shape
    how: Scheme
    wide: str
    block: int = 0
    few: Array | None = None
    importance: Array | None = None

    def coded(self, begin: int, values: Array) -> CodedRows:
        """The codes of whole rows, with ``begin`` values of the weight before them.

        Raises ``BuildError`` for numbers that would be infinite where codes are made wide again.
        """
        codes, scales, loss = [], [], Loss()
        for first, rows in self._blocks_of_rows(begin, values):
            self._require_room(rows)
            table = self._table(first, rows)
            if table is None:
                of_rows, grouped = self._scales(first, rows), self._grouped(rows)
                code, after = self._nearest(grouped, of_rows)
                after -= grouped
                loss.add(grouped.reshape(len(rows), -1), after.reshape(len(rows), -1))
                codes.append(code.reshape(len(rows), -1))
                scales.append(of_rows)
            else:
                index = upper_halves(rows)
                codes.append(table.codes.take(index, mode="wrap").view(E4M3.dtype))
                loss.add(rows, table.moved.take(index, mode="wrap"))
        return CodedRows(np.concatenate(codes), np.concatenate(scales) if self.block else None, loss)

    def scales(self, begin: int, values: Array) -> Array:
        """The scales of the blocks of whole rows, [rows, blocks]; with least values [rows, blocks, 2]."""
        return np.concatenate([self._scales(first, rows) for first, rows in self._blocks_of_rows(begin, values)])

    def _nearest(self, grouped: Array, scales: Array) -> tuple[Array, Array]:
        """The codes of groups that have these scales, and what they stand for."""
        if self.how.packed == AFFINE:
            codes = scale_and_least.codes_of(grouped, scales)
            return codes, scale_and_least.values_of(codes, scales)
        codes = rounded(grouped, scales[..., None], self.how.codes, self.how.largest)
        return codes, values_of(codes, scales[..., None], self.how.codes)

    def _table(self, first: int, rows: Array) -> CodesOfBf16 | None:
        """What BF16 numbers become, for rows that hold nothing else and have one scale with many others."""
        if self.few is None or self.how.codes != E4M3.numpy or self._of_group * self.shape[-1] < _MANY:
            return None
        group, last = first // self._of_group, (first + len(rows) - 1) // self._of_group
        return codes_of_bf16(float(self.few.reshape(-1)[group])) if group == last and is_bf16(rows) else None

    def _blocks_of_rows(self, begin: int, values: Array) -> Iterator[tuple[int, Array]]:
        """Whole rows some at a time, with the number of the first; at least one block, if it is of none."""
        columns = self.shape[-1]
        rows, step = values.reshape(-1, columns), max(1, _AT_ONCE // columns)
        for at in range(0, max(len(rows), 1), step):
            yield begin // columns + at, rows[at : at + step]

    @property
    def _of_group(self) -> int:
        """The rows that share one of few scales."""
        return 1 if self.few is None else math.prod(self.shape[:-1]) // self.few.size

    def _scales(self, first: int, rows: Array) -> Array:
        """``[rows, groups]`` for some rows, the first of which is number ``first`` of the weight."""
        if self.few is not None:
            return self.few.reshape(-1)[np.arange(first, first + len(rows)) // self._of_group][:, None]
        blocks = self._grouped(rows)
        if self.how.packed == AFFINE:
            return scale_and_least.fit(blocks, self.importance)
        if self.how.powers:
            return powers_of_two(magnitudes(blocks))
        return self._as_stored(block_scales(blocks, self.how.codes, self.how.largest))

    def _grouped(self, rows: Array) -> Array:
        """``[rows, groups, columns]``; of blocks with zeros behind each row that ends within one."""
        if not self.block:
            return rows[:, None]
        missing = -rows.shape[1] % self.block
        whole = np.pad(rows, ((0, 0), (0, missing))) if missing else rows
        return whole.reshape(len(whole), -1, self.block)

    def _as_stored(self, scales: Array) -> Array:
        """Rounded to the type that the graph keeps scales of blocks in, so that codes fit what they are scaled by."""
        kind = FLOAT16 if self.how.packed else NUMBER_FORMATS[self.wide].number_type
        with np.errstate(over="ignore"):  # what is packed is looked at
            stored: Array = scales.astype(kind.dtype).astype(np.float32)
        return np.where(stored == 0, np.float32(1), stored)  # too small for it: all codes are zero

    def _require_room(self, rows: Array) -> None:
        if self.wide == "fp16" and rows.size and abs(rows).max() > FLOAT16.largest:
            raise BuildError(
                f"{self.name} holds numbers beyond {FLOAT16.largest:.0f}, which float16 has no place for",
                why="it is multiplied, or added to, in float16",
                fix="convert the checkpoint to bfloat16 (its narrow recipes compute in it), or leave it wide",
            )


def row_magnitudes(columns: int, _: int, values: Array) -> Array:
    """The largest magnitude in each row, ``[rows]``, of whole rows of so many columns."""
    return magnitudes(values.reshape(-1, columns))
