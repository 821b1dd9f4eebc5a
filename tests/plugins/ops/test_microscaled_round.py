"""MicroscaledRound: the exact MXFP8 values, also at the edges of blocks and of powers of two."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.number_types import MX_BLOCK, powers_of_two
from peagle.plugins.ops import OPS
from tests.plugins.plugin_cases import few

OP = "MicroscaledRound"
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_LARGEST = float(np.finfo(np.float32).max)


def rounded(x: Any) -> Any:
    return OPS[OP].reference(x)[0]


def by_type(x: Any) -> Any:
    """The same with the E4M3 of a library, from a scale searched for among all of them."""
    blocks = x.astype(np.float64).reshape(-1, MX_BLOCK)
    powers = np.exp2(np.arange(-127.0, 128))
    fits = np.abs(blocks).max(axis=1)[:, None] / powers <= 448
    scale = powers[np.argmax(fits, axis=1)][:, None]
    codes = (blocks / scale).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    return (codes.astype(np.float64) * scale).reshape(x.shape).astype(x.dtype)


@st.composite
def tensors(draw: Any) -> Any:
    """Blocks of values of all magnitudes, some of them powers of two, or next to 448 times one."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    lead = draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    blocks = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.normal(size=(*lead, blocks, MX_BLOCK)).astype(np.float32)
    wide = 120 if dtype != np.float16 else 12
    exponents = rng.integers(-wide, wide + 1, size=(*lead, blocks, 1))
    kind = draw(st.sampled_from(["plain", "powers", "edge", "above", "below", "zeros"]))
    if kind == "powers":
        values = np.sign(values) * np.exp2(np.round(values))
    edge = {"edge": 1.75, "above": np.nextafter(np.float32(1.75), 2), "below": np.nextafter(np.float32(1.75), 1)}
    if kind in edge:
        values = np.clip(values, -1, 1)
        values[..., 0] = edge[kind]
    if kind == "zeros":
        values[..., 0, :] = 0
        values[..., ::3] = 0
    with np.errstate(over="ignore"):
        scaled = np.ldexp(values.astype(np.float32), exponents).reshape(*lead, -1)
    finite = np.where(np.isfinite(scaled), scaled, 1)
    return np.clip(finite, -60000, 60000).astype(dtype) if dtype == np.float16 else finite.astype(dtype)


@few
@given(tensors())
def test_reference_is_e4m3_times_the_least_fitting_power(x: Any) -> None:
    np.testing.assert_array_equal(rounded(x), by_type(x))


@few
@given(tensors())
def test_body_matches_the_reference(run_body: Any, x: Any) -> None:
    if x.dtype == ml_dtypes.bfloat16:  # ONNX Runtime gives none to NumPy
        x = x.astype(np.float32)
    np.testing.assert_array_equal(run_body(OP, [x])[0], rounded(x))


@pytest.mark.parametrize("amax", [0.0, 1e-45, 2.0**-126, _LARGEST, 2.0**90, 2.0**91, 448.0, 449.0, 2.0**-119])
def test_body_is_exact_at_the_range_ends(run_body: Any, amax: float) -> None:
    x = (np.linspace(-1, 1, 2 * MX_BLOCK) * amax).astype(np.float32).reshape(1, 2, MX_BLOCK)
    np.testing.assert_array_equal(run_body(OP, [x])[0], rounded(x))


def test_no_number_saturates_and_a_smaller_scale_would_let_one() -> None:
    amax = np.geomspace(1e-30, 1e30, 4001, dtype=np.float32)
    scale = powers_of_two(amax)
    assert (amax / scale).max() <= 448
    assert (amax / (scale / 2)).min() > 448


def test_rounding_is_idempotent() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4 * MX_BLOCK)).astype(np.float32)
    np.testing.assert_array_equal(rounded(rounded(x)), rounded(x))


def test_blocks_do_not_know_of_each_other() -> None:
    x = np.random.default_rng(0).normal(size=(1, 2 * MX_BLOCK)).astype(np.float32)
    loud = x.copy()
    loud[:, MX_BLOCK:] *= 1e6
    np.testing.assert_array_equal(rounded(loud)[:, :MX_BLOCK], rounded(x)[:, :MX_BLOCK])
    assert np.any(rounded(loud)[:, MX_BLOCK:] != 0)


def test_the_op_takes_any_rank_and_whole_blocks_only() -> None:
    for shape in ((64,), (3, 64), (2, 3, 64)):
        assert OPS[OP].infer_shapes([shape]) == [shape]
    for shape in ((33,), (2, 0)):
        with pytest.raises(BuildError, match="not a multiple of 32"):
            OPS[OP].infer_shapes([shape])
    with pytest.raises(BuildError, match="rank 1, not 0"):
        OPS[OP].infer_shapes([()])
