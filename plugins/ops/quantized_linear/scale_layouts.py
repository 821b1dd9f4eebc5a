"""The layouts of the scales of a packed matrix: a class for each, with its packing and its meaning.

Scales come row by row, as ``gguf_scales`` returns them, and are packed in tiles of 16 rows. A layout's ``meaning`` of
rows is

- factors, float32 [N, units]: a number of float32 for every 32 columns, or one for the row,
- steps, int32 [N, units, parts]: whole numbers that multiply the sums of the unit's parts before they are made float32,
- least values, float32 [N, units], or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Meaning = tuple[Array, Array, Array | None]

TILE, BLOCK = 16, 32
SUPERBLOCK = 256
_HALF = 2  # bytes of a float16


@dataclass(frozen=True)
class RowScales:
    """One float32 for a row: [N, 1], packed as [tiles, 1, 16]."""

    dtype: str = "float32"
    columns: int = 0  # that share an entry; 0: all of a row
    entry: tuple[int, ...] = ()  # shape of what a row has for those columns
    has_min: bool = False
    parts: int = 1  # of a block, each with a step of its own

    def units(self, columns: int) -> int:
        """Return the number of entries of a row."""
        return columns // self.columns if self.columns else 1

    @property
    def tile_numbers(self) -> int:
        """The length of a packed entry, in numbers of ``dtype``: that of a row, for 16 rows."""
        return TILE * int(np.prod(self.entry, dtype=int))

    def is_finite(self, rows: Array) -> bool:
        """Return False if a number of the rows is infinite or NaN."""
        return bool(np.isfinite(rows).all())

    def pack(self, rows: Array) -> Array:
        """Return rows [N, units, *entry] as tiles [tiles, units, tile_numbers]."""
        tiles = tiled(rows)
        return tiles.reshape(*tiles.shape[:2], -1)

    def unpack(self, tiles: Array) -> Array:
        """Return tiles as rows [16 * tiles, units, *entry]."""
        return untiled(tiles.reshape(*tiles.shape[:2], *self.entry, TILE))

    def meaning(self, rows: Array) -> Meaning:
        """Return factors, steps and least values of rows."""
        return rows.astype(np.float32), _ones(rows), None


@dataclass(frozen=True)
class BlockScales(RowScales):
    """A float16 for every 32 columns: [N, blocks], packed as [tiles, blocks, 16]."""

    dtype: str = "float16"
    columns: int = BLOCK


@dataclass(frozen=True)
class BlockScalesAndMin(BlockScales):
    """Two float16 for every 32 columns, scale and least value: [N, blocks, 2], packed as [tiles, blocks, 32].

    A packed entry has the 16 scales, then the 16 least values.
    """

    entry: tuple[int, ...] = (2,)
    has_min: bool = True

    def meaning(self, rows: Array) -> Meaning:
        """Return factors, steps and least values of rows."""
        wide = rows.astype(np.float32)
        return wide[..., 0], _ones(wide[..., 0]), wide[..., 1]


@dataclass(frozen=True)
class Exponents(BlockScales):
    """An E8M0 exponent for every 32 columns, whose scale is half that power of two: uint8 [N, blocks]."""

    dtype: str = "uint8"

    def is_finite(self, rows: Array) -> bool:
        """Return False if an exponent is 255, which is NaN."""
        return bool((rows != 255).all())

    def meaning(self, rows: Array) -> Meaning:
        """Return factors, steps and least values of rows."""
        bits = np.maximum(rows.astype(np.uint32) << 23, 1 << 22)  # exponent 0 is subnormal
        return bits.view(np.float32) * np.float32(0.5), _ones(rows), None


@dataclass(frozen=True)
class StepsAndMin(RowScales):
    """Float16 d and dmin, 8 scales and 8 minimums for every 256 columns: uint8 [N, superblocks, 20].

    The scale of a block is d times its whole scale, its least value is minus dmin times its whole minimum. A packed
    entry of 320 bytes has 16 d, 16 dmin, and for each block 16 scales, then 16 minimums.
    """

    dtype: str = "uint8"
    columns: int = SUPERBLOCK
    entry: tuple[int, ...] = (20,)
    has_min: bool = True
    halves: int = 2

    def is_finite(self, rows: Array) -> bool:
        """Return False if d or dmin is infinite or NaN."""
        return bool(np.isfinite(self._halves(rows)).all())

    def pack(self, rows: Array) -> Array:
        """Return rows [N, superblocks, *entry] as tiles [tiles, superblocks, tile_numbers]."""
        halves = tiled(self._halves(rows)).view(np.uint8)
        steps = tiled(self._by_block(rows[..., self.halves * _HALF :]))
        return np.concatenate([each.reshape(*each.shape[:2], -1) for each in (halves, steps)], axis=-1)

    def unpack(self, tiles: Array) -> Array:
        """Return tiles as rows [16 * tiles, superblocks, *entry]."""
        halves, steps = np.split(tiles, [self.halves * _HALF * TILE], axis=-1)
        d = np.ascontiguousarray(halves).view(np.float16).reshape(*tiles.shape[:2], self.halves, TILE)
        by_block = untiled(steps.reshape(*tiles.shape[:2], -1, TILE))
        return np.concatenate([untiled(d).view(np.uint8), self._by_kind(by_block)], axis=-1)

    def meaning(self, rows: Array) -> Meaning:
        """Return factors, steps and least values of rows."""
        wide = self._halves(rows).astype(np.float32)
        steps = rows[..., self.halves * _HALF :].astype(np.float32).reshape(*rows.shape[:2], 2, -1)
        factors, minimums = (wide[..., None] * steps).transpose(2, 0, 1, 3).reshape(2, len(rows), -1)
        return factors, _ones(factors), -minimums

    def _halves(self, rows: Array) -> Array:
        return np.ascontiguousarray(rows[..., : self.halves * _HALF]).view(np.float16)

    def _by_block(self, steps: Array) -> Array:
        """Return bytes that are all scales, then all minimums, as those of one block after the other."""
        return steps.reshape(*steps.shape[:2], 2, -1).swapaxes(-1, -2).reshape(steps.shape)

    def _by_kind(self, steps: Array) -> Array:
        return steps.reshape(*steps.shape[:2], -1, 2).swapaxes(-1, -2).reshape(steps.shape)


@dataclass(frozen=True)
class HalfBlockSteps(StepsAndMin):
    """A float16, d, for every 256 columns, and an int8 for every 16 of them: uint8 [N, superblocks, 18].

    A packed entry of 288 bytes has 16 d, then for each half of a block 16 steps.
    """

    entry: tuple[int, ...] = (18,)
    has_min: bool = False
    parts: int = 2
    halves: int = 1

    def meaning(self, rows: Array) -> Meaning:
        """Return factors, steps and least values of rows."""
        steps = np.ascontiguousarray(rows[..., self.halves * _HALF :]).view(np.int8)
        blocks = steps.astype(np.int32).reshape(len(rows), -1, self.parts)
        d = self._halves(rows)[..., 0].astype(np.float32)
        return np.repeat(d, SUPERBLOCK // BLOCK, axis=-1), blocks, None

    def _by_block(self, steps: Array) -> Array:
        return steps

    def _by_kind(self, steps: Array) -> Array:
        return steps


def tiled(rows: Array) -> Array:
    """Return an array [N, ...] as [tiles, ..., 16], padded with zeros."""
    filled = np.zeros((-(-len(rows) // TILE) * TILE, *rows.shape[1:]), rows.dtype)
    filled[: len(rows)] = rows
    return np.ascontiguousarray(np.moveaxis(filled.reshape(-1, TILE, *rows.shape[1:]), 1, -1))


def untiled(tiles: Array) -> Array:
    """Return an array [tiles, ..., 16] as [16 * tiles, ...]."""
    rows = np.moveaxis(tiles, -1, 1)
    return np.ascontiguousarray(rows.reshape(-1, *rows.shape[2:]))


def _ones(factors: Array) -> Array:
    return np.ones((*factors.shape, 1), np.int32)
