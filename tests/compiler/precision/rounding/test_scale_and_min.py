"""4-bit blocks with a scale and a minimum are stored with the smallest error, for any values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from peagle.compiler.precision.rounding.scale_and_min import codes_of, fit, importance, values_of

WIDE = st.floats(-60_000, 60_000, width=32, allow_subnormal=False)


def _noise(rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, blocks, 32)).astype(np.float32)


def _errors(blocks: np.ndarray, fitted: np.ndarray, counts: np.ndarray | float = 1.0) -> np.ndarray:
    moved = values_of(codes_of(blocks, fitted), fitted) - blocks
    return (moved * moved * counts).sum(axis=-1)


def _from_edge_to_edge(blocks: np.ndarray) -> np.ndarray:
    low, high = blocks.min(axis=-1), blocks.max(axis=-1)
    scale = ((high - low) / 15).astype(np.float16).astype(np.float32)
    return np.stack([np.where(scale == 0, 1, scale), low.astype(np.float16).astype(np.float32)], axis=-1)


def test_a_fit_loses_less_than_codes_from_the_least_number_to_the_largest() -> None:
    blocks = _noise(64, 4)
    fitted, plain = _errors(blocks, fit(blocks)), _errors(blocks, _from_edge_to_edge(blocks))
    assert np.mean(fitted <= plain * 1.001) > 0.99
    assert fitted.sum() < 0.85 * plain.sum()


def test_heavily_weighted_values_move_less() -> None:
    blocks = _noise(64, 4)
    counts = np.ones((4, 32), np.float32)
    counts[:, 5] = 1000
    flat, weighted = fit(blocks), fit(blocks, counts)
    assert _errors(blocks, weighted, counts).sum() < 0.5 * _errors(blocks, flat, counts).sum()
    moved = values_of(codes_of(blocks, weighted), weighted) - blocks
    assert np.abs(moved[..., 5]).mean() < 0.2 * np.abs(moved[..., 6]).mean()


@given(arrays.arrays(np.float32, (2, 2, 32), elements=WIDE))
def test_values_stay_within_two_steps(blocks: np.ndarray) -> None:
    fitted = fit(blocks)
    codes = codes_of(blocks, fitted)
    assert (codes.dtype, codes.max() <= 15) == (np.uint8, True)
    np.testing.assert_array_equal(fitted, fitted.astype(np.float16).astype(np.float32))
    reach = blocks.max(axis=-1) - blocks.min(axis=-1)
    room = reach * 0.15 + np.abs(blocks).max(axis=-1) * 2e-3 + 1e-6
    assert np.all(_errors(blocks, fitted) <= 32 * room * room)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_block_rounding_is_position_independent(seed: int, rows: int) -> None:
    blocks, counts = _noise(rows, 3, seed), np.random.default_rng(seed).random((3, 32), np.float32) + 0.1
    together = fit(blocks, counts)
    for row in range(rows):
        np.testing.assert_array_equal(fit(blocks[row : row + 1], counts)[0], together[row])


def test_many_blocks_are_rounded_as_few_are() -> None:
    blocks = _noise(1500, 3)  # more than one batch, and not a multiple of it
    counts = np.arange(1, 97, dtype=np.float32).reshape(3, 32)
    np.testing.assert_array_equal(fit(blocks, counts)[1400:], fit(blocks[1400:], counts))


def test_numbers_of_sixteen_steps_are_stored_exactly() -> None:
    codes = np.random.default_rng(1).integers(0, 16, (8, 2, 32))
    codes[..., :2] = 0, 15
    blocks = (codes * 0.25 - 1.5).astype(np.float32)
    np.testing.assert_array_equal(codes_of(blocks, fit(blocks)), codes)
    assert _errors(blocks, fit(blocks)).max() == 0


@pytest.mark.parametrize("value", [0.0, 0.5, -3.0, 1e-9])
def test_equal_values_stay_equal(value: float) -> None:
    blocks = np.full((1, 1, 32), value, np.float32)
    fitted = fit(blocks)
    values = values_of(codes_of(blocks, fitted), fitted)
    assert np.all(values == values.reshape(-1)[0])
    np.testing.assert_allclose(values, blocks, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_unstorable_values_are_left_for_packing_to_reject(value: float) -> None:
    blocks = _noise(1, 2)
    blocks[0, 1, 3] = value
    fitted = fit(blocks)
    assert np.isfinite(fitted[0, 0]).all()
    assert not np.isfinite(fitted[0, 1]).all()
    codes_of(blocks, fitted)


def test_inputs_that_were_always_zero_count_for_a_little() -> None:
    squares = np.zeros(64, np.float32)
    np.testing.assert_array_equal(importance(squares, 32), np.ones((2, 32)))
    squares[3] = 8
    counts = importance(squares, 32)
    assert counts[0, 3] > 1e4 * counts[1, 0] > 0
