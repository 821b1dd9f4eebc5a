"""Quantize the rows of one weight in cache-sized pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....graphs.targets.checkpoint_pieces import Array, Shape
from ....plugins.errors import BuildError
from ....plugins.number_formats import AFFINE, NUMBER_FORMATS, Scheme
from ....plugins.number_types import BFLOAT16, E4M3, FLOAT16, powers_of_two
from ...checkpoints.formats.fp8_with_scales import Loss
from . import scale_and_min
from .codes_of_bf16 import CodesOfBf16, codes_of_bf16, is_bf16, upper_halves
from .numbers_to_codes import block_scales, magnitudes, rounded, values_of

_AT_ONCE = 2**18  # values: with fewer, threads mostly wait for the interpreter lock
_MANY = 2**18  # values: building the table of one scale takes as long as rounding a quarter of them


@dataclass(frozen=True)
class CodedRows:
    """Codes of some rows, the scales of their blocks if any, and the quantization error."""

    codes: Array
    scales: Array | None
    loss: Loss


@dataclass(frozen=True)
class Coding:
    """Quantizer of the rows of the weight ``name``. The result depends only on the rows, so threads can share the work.

    ``block`` columns share a scale. If it is 0, all rows of a group do, and ``few`` holds the known scales.
    ``importance``, [blocks, columns], weights the error of each column. The recipe computes in ``wide``.
    """

    name: str
    shape: Shape
    how: Scheme
    wide: str
    block: int = 0
    few: Array | None = None
    importance: Array | None = None

    def coded(self, begin: int, values: Array) -> CodedRows:
        """Quantize whole rows; ``begin`` values of the weight precede them.

        Raises ``BuildError`` for values that would dequantize to infinity.
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
        """Return the scales of the blocks of whole rows, [rows, blocks]; with minima [rows, blocks, 2]."""
        return np.concatenate([self._scales(first, rows) for first, rows in self._blocks_of_rows(begin, values)])

    def _nearest(self, grouped: Array, scales: Array) -> tuple[Array, Array]:
        """Return the codes of groups for given scales, and their dequantized values."""
        if self.how.packed == AFFINE:
            codes = scale_and_min.codes_of(grouped, scales)
            return codes, scale_and_min.values_of(codes, scales)
        codes = rounded(grouped, scales[..., None], self.how.codes, self.how.largest)
        return codes, values_of(codes, scales[..., None], self.how.codes)

    def _table(self, first: int, rows: Array) -> CodesOfBf16 | None:
        """Return the lookup table for rows of BF16 values that share one scale with many others, else None."""
        if self.few is None or self.how.codes != E4M3.numpy or self._of_group * self.shape[-1] < _MANY:
            return None
        group, last = first // self._of_group, (first + len(rows) - 1) // self._of_group
        return codes_of_bf16(float(self.few.reshape(-1)[group])) if group == last and is_bf16(rows) else None

    def _blocks_of_rows(self, begin: int, values: Array) -> Iterator[tuple[int, Array]]:
        """Yield whole rows a few at a time, with the index of the first; at least one block, even if empty."""
        columns = self.shape[-1]
        rows, step = values.reshape(-1, columns), max(1, _AT_ONCE // columns)
        for at in range(0, max(len(rows), 1), step):
            yield begin // columns + at, rows[at : at + step]

    @property
    def _of_group(self) -> int:
        """The number of rows per scale, with few scales."""
        return 1 if self.few is None else math.prod(self.shape[:-1]) // self.few.size

    def _scales(self, first: int, rows: Array) -> Array:
        """Return ``[rows, groups]`` scales for some rows, beginning with row ``first`` of the weight."""
        if self.few is not None:
            return self.few.reshape(-1)[np.arange(first, first + len(rows)) // self._of_group][:, None]
        blocks = self._grouped(rows)
        if self.how.packed == AFFINE:
            return scale_and_min.fit(blocks, self.importance)
        if self.how.powers:
            return powers_of_two(magnitudes(blocks))
        return self._as_stored(block_scales(blocks, self.how.codes, self.how.largest))

    def _grouped(self, rows: Array) -> Array:
        """Reshape to ``[rows, groups, columns]``, padding a row's last block with zeros."""
        if not self.block:
            return rows[:, None]
        missing = -rows.shape[1] % self.block
        padded = np.pad(rows, ((0, 0), (0, missing))) if missing else rows
        return padded.reshape(len(padded), -1, self.block)

    def _as_stored(self, scales: Array) -> Array:
        """Round scales to their storage type in the graph, so that codes match the stored scales."""
        kind = FLOAT16 if self.how.packed else NUMBER_FORMATS[self.wide].number_type
        with np.errstate(over="ignore"):  # packing checks the values
            stored: Array = scales.astype(kind.dtype).astype(np.float32)
        return np.where(stored == 0, np.float32(1), stored)  # underflow: all codes are zero

    def _require_room(self, rows: Array) -> None:
        kind = NUMBER_FORMATS[self.wide].number_type
        has_range = kind.largest >= BFLOAT16.largest  # weights are never that large
        if not has_range and rows.size and abs(rows).max() > kind.largest:
            raise BuildError(
                f"{self.name}: values overflow {kind.numpy} (largest finite value {kind.largest:.0f})",
                why=f"the graph computes in {kind.numpy}",
                fix="build unquantized with `--precision bf16`, or convert the checkpoint to bfloat16, so that "
                "quantized recipes compute in bfloat16",
            )


def row_magnitudes(columns: int, _: int, values: Array) -> Array:
    """Return the largest magnitude in each of whole rows, ``[rows]``."""
    return magnitudes(values.reshape(-1, columns))
