"""Conversion to codes and back: to the nearest value, monotonic, and never NaN."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from peagle.compiler.precision.rounding.numbers_to_codes import (
    LARGEST,
    SMALLEST,
    block_scales,
    rounded,
    scales_for,
    unusable,
    values_of,
)
from peagle.graphs.quantization.quantized_weight import MIDDLE, Codes

Array = np.ndarray[Any, Any]
WHOLE: tuple[Codes, ...] = ("int8", "uint8", "int4", "uint4")
FOUR: tuple[Codes, ...] = ("int4", "uint4")
EVERY: tuple[Codes, ...] = ("float8_e4m3fn", *WHOLE)
NUMBERS = st.floats(-(2.0**127), 2.0**127, width=32)
BLOCKS = arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.sampled_from([8, 16, 32])), elements=NUMBERS)
MODEST = arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.just(32)), elements=st.floats(-4, 4, width=32))


def _back(values: Array, scales: Array, kind: Codes) -> Array:
    return values_of(rounded(values, scales[..., None], kind), scales[..., None], kind)


@settings(max_examples=60, deadline=None)
@given(values=BLOCKS, kind=st.sampled_from(EVERY))
def test_codes_of_any_numbers_are_in_their_range_and_mean_numbers(values: Array, kind: Codes) -> None:
    scales = block_scales(values, kind)
    assert scales.shape == values.shape[:-1]
    assert scales.dtype == np.float32
    assert np.all(np.isfinite(scales))
    assert np.all(scales != 0)
    codes = rounded(values, scales[..., None], kind)
    steps = codes.astype(np.float32) - MIDDLE.get(kind, 0)
    assert np.all((SMALLEST[kind] <= steps) & (steps <= LARGEST[kind]))
    assert np.all(np.isfinite(values_of(codes, np.sign(scales)[..., None], kind)))


@settings(max_examples=60, deadline=None)
@given(values=MODEST, kind=st.sampled_from(WHOLE))
def test_unclipped_values_round_within_half_a_step(values: Array, kind: Codes) -> None:
    scales = block_scales(values, kind)
    steps = values / scales[..., None]
    inside = (SMALLEST[kind] <= steps) & (steps <= LARGEST[kind])
    off = abs(_back(values, scales, kind) - values)
    assert np.all(off[inside] <= 0.5001 * np.broadcast_to(abs(scales)[..., None], values.shape)[inside])
    if kind not in FOUR:
        assert np.all(abs(steps) <= 127.01)  # nothing is clipped


@settings(max_examples=60, deadline=None)
@given(values=MODEST, kind=st.sampled_from(EVERY))
def test_rounding_is_idempotent_and_monotonic(values: Array, kind: Codes) -> None:
    scales = abs(block_scales(values, kind))
    once = _back(values, scales, kind)
    np.testing.assert_array_equal(_back(once, scales, kind), once)
    assert np.all(np.diff(_back(np.sort(values, axis=-1), scales, kind), axis=-1) >= 0)


@settings(max_examples=60, deadline=None)
@given(values=MODEST, kind=st.sampled_from(FOUR))
def test_searched_scale_is_at_least_as_good_as_the_unclipped_one(values: Array, kind: Codes) -> None:
    plain = scales_for(abs(values).max(axis=-1), kind)
    ours, theirs = (
        ((_back(values, each, kind) - values) ** 2).sum(axis=-1) for each in (block_scales(values, kind), plain)
    )
    assert np.all(ours <= theirs * 1.0001 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(values=MODEST, cut=st.integers(0, 5), kind=st.sampled_from(FOUR))
def test_a_block_has_its_scale_from_itself_alone(values: Array, cut: int, kind: Codes) -> None:
    apart = [block_scales(part, kind) for part in (values[:cut], values[cut:])]
    np.testing.assert_array_equal(block_scales(values, kind), np.concatenate(apart))


def test_more_rows_than_are_tried_at_once_have_the_scales_that_they_have_alone() -> None:
    values = np.random.default_rng(0).standard_normal((70, 40, 32)).astype(np.float32)  # more than 2**16 numbers
    found = block_scales(values, "uint4")
    np.testing.assert_array_equal(found[-1], block_scales(values[-1], "uint4"))
    assert found.shape == (70, 40)


def test_only_codes_that_tensorrt_does_not_read_have_negative_scales() -> None:
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    assert block_scales(values, "int4").min() > 0
    assert block_scales(values, "uint4").min() < 0


def test_searched_scales_move_noise_an_eighth_less_than_plain_ones() -> None:
    values = np.random.default_rng(0).standard_normal((4096, 32)).astype(np.float32)
    error = {
        name: float(np.linalg.norm(_back(values, scales, "uint4") - values) / np.linalg.norm(values))
        for name, scales in (
            ("plain", scales_for(abs(values).max(axis=-1), "uint4")), ("searched", block_scales(values, "uint4"))
        )
    }  # fmt: skip
    assert error["plain"] > 0.097
    assert error["searched"] < 0.084


@pytest.mark.parametrize("kind", EVERY)
def test_blocks_of_zeros_are_zeros(kind: Codes) -> None:
    values = np.zeros((3, 32), np.float32)
    assert np.all(_back(values, block_scales(values, kind), kind) == 0)
    tiny = np.full((1, 32), 1e-44, np.float32)
    assert np.all(abs(_back(tiny, block_scales(tiny, kind), kind)) < 1e-36)


@pytest.mark.parametrize("kind", WHOLE)
def test_ties_round_to_even_and_overflow_saturates(kind: Codes) -> None:
    given_, ones = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e30, -1e30], np.float32), np.float32(1)
    codes = rounded(given_, ones, kind).astype(np.int64) - MIDDLE.get(kind, 0)
    assert codes.tolist() == [0, 2, 2, 0, -2, LARGEST[kind], SMALLEST[kind]]


def test_scales_are_usable_up_to_the_largest_value_of_the_wide_type() -> None:
    """BF16 ends just below FP32."""
    between = np.float32([3.392e38 / LARGEST["float8_e4m3fn"]])
    assert "overflows bf16" in unusable(between, "float8_e4m3fn", "bf16")
    assert unusable(between, "float8_e4m3fn", "fp32") == ""


def test_e4m3_table_matches_the_type() -> None:
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    scales = np.float32([[0.3], [1e-30], [1e30]])
    every = np.broadcast_to(codes, (3, 256)).copy()
    with np.errstate(over="ignore"):
        assert values_of(every, scales, "float8_e4m3fn").tobytes() == (codes.astype(np.float32) * scales).tobytes()
