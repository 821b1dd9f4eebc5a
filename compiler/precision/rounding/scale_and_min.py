"""Quantize blocks to four-bit codes with a scale and a minimum, with the least error (GGUF's Q4_1)."""

from __future__ import annotations

import numpy as np

from ....graphs.targets.checkpoint_pieces import Array
from ....plugins.number_types import FLOAT16

LARGEST_CODE = 15
# Initial code ranges, relative to a block's range; the refinement's result depends on its start.
_FACTORS = (0.9, 1.0, 1.1)
_REFITS = 4  # per start: fit scale and minimum to the codes, then the codes to these
_MIN_RANGE = 1e-4
_AT_ONCE = 2**18  # values


def fit(blocks: Array, importance: Array | None = None) -> Array:
    """Fit scale and minimum of every block: float32 [rows, blocks, 2], exact in float16, of [rows, blocks, columns].

    Of several starts, each refined by least squares, the one with the least sum of squared errors is used;
    ``importance``, [blocks, columns], weights the errors. The scale is 1 for a constant block; both are NaN for a block
    with a value that is not finite, or beyond what float16 can scale. The result depends on the block and its
    importance alone.
    """
    rows, count, columns = blocks.shape
    flat = blocks.reshape(-1, columns)
    step = max(1, _AT_ONCE // columns)
    result = np.empty((len(flat), 2), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # packing reports what cannot be stored
        for at in range(0, len(flat), step):
            some = flat[at : at + step]
            of_some = None if importance is None else importance[np.arange(at, at + len(some)) % count]
            result[at : at + step] = _fit(some, of_some)
    fitted: Array = result.reshape(rows, count, 2)
    return fitted


def importance(squares: Array, block: int) -> Array:
    """Weight of an error per column, float32 [blocks, block], from the mean square of each input, [columns].

    An error in a weight is multiplied by its input. A column whose input was always zero gets a small weight, because
    other texts may use it.
    """
    mean = squares.mean(dtype=np.float64)
    counts = (squares / mean + _MIN_RANGE).astype(np.float32) if mean > 0 else np.ones_like(squares)
    return counts.reshape(-1, block)


def codes_of(blocks: Array, fitted: Array) -> Array:
    """Return the nearest codes, uint8 in the shape of ``blocks``, for the result of ``fit``."""
    with np.errstate(over="ignore", invalid="ignore"):
        levels = np.rint((blocks - fitted[..., 1:]) / fitted[..., :1])
    codes: Array = np.nan_to_num(np.clip(levels, 0, LARGEST_CODE)).astype(np.uint8)
    return codes


def values_of(codes: Array, fitted: Array) -> Array:
    """Dequantize codes to float32."""
    values: Array = codes.astype(np.float32) * fitted[..., :1] + fitted[..., 1:]
    return values


def _fit(rows: Array, importance: Array | None) -> Array:
    """``fit`` for one block per row; ``importance`` has the same shape."""
    low, high = rows.min(axis=1), rows.max(axis=1)
    weighted = rows if importance is None else rows * importance
    count = np.full_like(low, rows.shape[1]) if importance is None else importance.sum(axis=1)
    total = weighted.sum(axis=1)
    least_error = np.full(len(rows), np.inf, np.float32)
    best = np.stack([np.ones_like(low), _stored(low)], axis=1)
    codes, error, counted = np.empty_like(rows), np.empty_like(rows), np.empty_like(rows)
    for span in _FACTORS:
        scale = (high - low) * np.float32(span / LARGEST_CODE)
        minimum = (low + high) / 2 - scale * np.float32(LARGEST_CODE / 2)
        for refit in range(_REFITS + 1):
            scale, minimum = _stored(scale), _stored(minimum)
            scale[scale == 0] = 1
            np.subtract(rows, minimum[:, None], out=codes)
            codes /= scale[:, None]
            np.clip(np.rint(codes, out=codes), 0, LARGEST_CODE, out=codes)
            np.multiply(codes, scale[:, None], out=error)
            error += minimum[:, None]
            error -= rows
            weighted_error = error if importance is None else np.multiply(error, importance, out=counted)
            squared = np.einsum("ij,ij->i", error, weighted_error)
            better = squared < least_error
            least_error[better] = squared[better]
            best[better, 0], best[better, 1] = scale[better], minimum[better]
            if refit < _REFITS:
                scale, minimum = _least_squares(codes, weighted, importance, count, total, (scale, minimum))
    best[~np.isfinite(least_error)] = np.nan
    return best


def _least_squares(
    codes: Array, weighted: Array, importance: Array | None, count: Array, total: Array, otherwise: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return the best scale and minimum for given codes; ``otherwise`` for rows with one single code."""
    of_codes = codes if importance is None else codes * importance
    sums, squares = of_codes.sum(axis=1), np.einsum("ij,ij->i", of_codes, codes)
    products = np.einsum("ij,ij->i", codes, weighted)
    spread = count * squares - sums * sums
    has_spread = spread > 0
    divisor = np.where(has_spread, spread, 1)
    scale = np.where(has_spread, (count * products - sums * total) / divisor, otherwise[0])
    minimum = np.where(has_spread, (squares * total - sums * products) / divisor, otherwise[1])
    return scale.astype(np.float32), minimum.astype(np.float32)


def _stored(values: Array) -> Array:
    """Round to the storage type of scales and minima."""
    rounded: Array = values.astype(FLOAT16.dtype).astype(np.float32)
    return rounded
