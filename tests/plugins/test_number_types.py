"""Number types: one table that agrees with every library, and rounding equal to ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from peagle.plugins.number_types import (
    BY_NAME,
    E4M3,
    E8M0,
    MX_BLOCK,
    NUMBER_TYPES,
    NumberType,
    from_e4m3,
    from_e8m0,
    nearest_e4m3,
    powers_of_two,
    scales_of,
    to_e4m3,
    to_e8m0,
    usable,
)

CODES = np.arange(256, dtype=np.uint8)
FLOATS = [kind for kind in NUMBER_TYPES if "float" in kind.name and kind is not E8M0]
WHOLE = [kind for kind in NUMBER_TYPES if "int" in kind.name]
NUMBERS = st.one_of(
    st.floats(width=32),
    st.floats(-500, 500, width=32),
    st.floats(-0.0166015625, 0.0166015625, width=32),  # around the subnormal numbers of E4M3
    st.sampled_from([0.0, -0.0, 448.0, 464.0, np.nextafter(np.float32(464), np.float32(0)).item(), 480.0, 3e38]),
)
quick = settings(deadline=None, max_examples=80)


def by_ml_dtypes(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # NaN
        return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


@quick
@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, max_side=9), elements=NUMBERS))
def test_e4m3_codes_match_ml_dtypes_and_torch_saturating(values: np.ndarray) -> None:
    codes = to_e4m3(values)
    assert codes.dtype == np.uint8
    assert codes.shape == values.shape
    np.testing.assert_array_equal(codes, by_ml_dtypes(values))
    clipped = torch.from_numpy(np.clip(values, -448, 448).astype(np.float32).reshape(-1))
    np.testing.assert_array_equal(codes.reshape(-1), clipped.to(torch.float8_e4m3fn).view(torch.uint8).numpy())


@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0xFFFF])
def test_e4m3_codes_are_right_for_every_upper_half_of_a_float32(low: int) -> None:
    """Signs, ties, subnormals, infinities and NaN are all among them."""
    values = ((np.arange(1 << 16, dtype=np.uint32) << 16) | np.uint32(low)).view(np.float32)
    np.testing.assert_array_equal(to_e4m3(values), by_ml_dtypes(values))


def test_e4m3_ties_round_to_even() -> None:
    sizes = from_e4m3(CODES[:127])
    middles = (sizes[1:] + sizes[:-1]) / 2
    for sign in (1, -1):
        assert not (to_e4m3(sign * middles) & 1).any()
    np.testing.assert_array_equal(to_e4m3(np.nextafter(middles, np.float32(np.inf))), CODES[1:127])
    np.testing.assert_array_equal(to_e4m3(np.nextafter(middles, np.float32(0))), CODES[:126])


def test_e4m3_numbers_match_ml_dtypes_and_round_to_themselves() -> None:
    numbers = from_e4m3(CODES)
    np.testing.assert_array_equal(numbers, CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    np.testing.assert_array_equal(np.signbit(numbers), CODES >= 128)
    np.testing.assert_array_equal(nearest_e4m3(numbers), numbers)
    np.testing.assert_array_equal(to_e4m3(numbers), CODES)


@quick
@given(hnp.arrays(np.float16, 40, elements=st.floats(width=16)))
def test_halves_round_as_the_floats_that_they_are(values: np.ndarray) -> None:
    np.testing.assert_array_equal(to_e4m3(values), by_ml_dtypes(values.astype(np.float32)))


def test_non_contiguous_view_rounds_like_a_copy() -> None:
    values = np.random.default_rng(0).normal(scale=100, size=(70, 3000)).astype(np.float32)
    np.testing.assert_array_equal(to_e4m3(values.T[:, ::2]), by_ml_dtypes(values).T[:, ::2])


@quick
@given(st.floats(2.0**-100, 2.0**127, width=32), st.sampled_from([E4M3, BY_NAME["int8"], BY_NAME["int4"]]))
def test_scale_maps_the_largest_code_to_the_largest_number(amax: float, kind: NumberType) -> None:
    scale = scales_of(amax, kind.largest)
    assert scale.dtype == np.float32
    assert float(scale) == np.float32(np.float64(amax) / kind.largest)
    assert float(scale) * kind.largest == pytest.approx(amax, rel=1e-6)


def test_unusable_scales_become_one() -> None:
    tiny = np.finfo(np.float32).tiny
    scales = usable(np.array([0, tiny / 2, -tiny / 2, tiny, -2, 3], np.float32))
    np.testing.assert_array_equal(scales, np.array([1, 1, 1, tiny, -2, 3], np.float32))


@quick
@given(st.floats(2.0**-118, 2.0**127, width=32))
def test_block_power_of_two_is_the_least_without_saturation(amax: float) -> None:
    scale = float(powers_of_two(np.float32(amax)))
    assert np.log2(scale) == int(np.log2(scale))
    assert amax / scale <= E4M3.largest < amax / (scale / 2)


def test_powers_of_two_end_at_the_least_that_e8m0_has() -> None:
    np.testing.assert_array_equal(powers_of_two(np.array([0, 1e-45, 2.0**-119], np.float32)), [2.0**-127] * 3)


def test_e8m0_codes_match_ml_dtypes_in_both_directions() -> None:
    powers = from_e8m0(CODES)
    np.testing.assert_array_equal(powers, CODES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    np.testing.assert_array_equal(to_e8m0(powers[:255]), CODES[:255])


@pytest.mark.parametrize("kind", NUMBER_TYPES, ids=lambda kind: kind.name)
def test_table_matches_onnx_numpy_and_torch(kind: NumberType) -> None:
    onnx_name = onnx.TensorProto.DataType.Name(kind.onnx).lower()
    assert onnx_name == ("float" if kind.name == "float32" else kind.name)
    assert kind.dtype.name == kind.numpy
    assert onnx.helper.tensor_dtype_to_np_dtype(kind.onnx) == kind.dtype
    if kind.bits >= 8 and hasattr(torch, kind.numpy):
        assert getattr(torch, kind.numpy).itemsize * 8 == kind.bits


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name)
def test_floats_reach_from_their_least_to_their_largest(kind: NumberType) -> None:
    limits = ml_dtypes.finfo(kind.dtype)
    assert (kind.smallest, kind.largest, kind.bits) == (float(limits.min), float(limits.max), limits.bits)


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.name)
def test_integers_reach_from_their_least_to_their_largest(kind: NumberType) -> None:
    limits = ml_dtypes.iinfo(kind.dtype)
    assert (kind.smallest, kind.largest, kind.bits) == (float(limits.min), float(limits.max), limits.bits)


def test_no_two_types_share_a_name_and_packed_numbers_fill_bytes() -> None:
    for field in ("name", "onnx", "numpy", "tensorrt", "safetensors"):
        names = [name for kind in NUMBER_TYPES if (name := getattr(kind, field))]
        assert len(set(names)) == len(names), field
    assert [BY_NAME["int4"].bytes(count) for count in (0, 1, 2, MX_BLOCK)] == [0, 1, 1, 16]
