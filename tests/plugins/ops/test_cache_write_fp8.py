"""CacheWriteFp8: new keys and values become codes at their positions, and nothing else changes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from peagle.plugins.ops.cache_write_fp8.reference import cache_codes
from tests.plugins.plugin_cases import EVERY, Arrays, few, inputs_of, reference, same_codes, writes

OP = "CacheWriteFp8"
FINITE = EVERY[np.isfinite(EVERY.astype(np.float32))]


@few
@given(writes((np.float32, np.float16, ml_dtypes.bfloat16)))
def test_body_matches_the_reference(run_body: Any, batch: Arrays) -> None:
    """But for the sign of zero: ONNX Runtime adds a zero point of 0."""
    same_codes(run_body(OP, inputs_of(OP, batch)), reference(OP, batch), signed_zero=False)


@few
@given(writes())
def test_only_positions_of_the_cache_are_written(batch: Arrays) -> None:
    length, width = batch["k_cache"].shape[2], batch["k"].shape[2]
    for name, out in zip(("k", "v"), reference(OP, batch), strict=True):
        for b, start in enumerate(batch["start"].tolist()):
            after = {start + s: s for s in range(width)}
            for t in range(length):
                before = batch[f"{name}_cache"][b, :, t]
                new = cache_codes(batch[name][b, :, after[t]], batch[f"{name}_scale"]) if t in after else before
                np.testing.assert_array_equal(out[b, :, t].view(np.uint8), new.view(np.uint8))


def test_codes_are_the_nearest_and_saturate() -> None:
    """Against the table of all codes, for which nothing needs to be known of the format."""
    rng = np.random.default_rng(3)
    table = FINITE.astype(np.float64)
    x = np.concatenate([rng.normal(size=500) * scale for scale in (1e-3, 0.02, 1, 50, 400, 1e4)]).astype(np.float32)
    nearest = np.abs(x[:, None].astype(np.float64) - table).min(axis=1)
    np.testing.assert_array_equal(np.abs(x - cache_codes(x, 1.0).astype(np.float64)), nearest)
    # Half way between two codes it is the even one.
    size = np.sort(FINITE[FINITE.astype(np.float32) >= 0].astype(np.float64))
    middles = (size[1:] + size[:-1]) / 2
    assert not (cache_codes(middles[middles > 0].astype(np.float32), 1.0).view(np.uint8) & 1).any()
    extremes = np.array([1e6, -1e6, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(cache_codes(extremes, 0.5).astype(np.float32), [448, -448, 448, -448, np.nan])


def test_misfit_sizes_are_named() -> None:
    op = OPS[OP]
    new, cache = (2, 4, 9, 8), (2, 4, 8, 8)
    with pytest.raises(BuildError, match="9 new positions do not fit a cache of 8"):
        op.infer_shapes([cache, cache, new, new, (2,), (), ()])
    huge = (2**12, 8, 1, 2**16)
    with pytest.raises(BuildError, match="exceed the limit of one launch"):
        op.infer_shapes([huge, huge, huge, huge, (2**12,), (), ()])
    with pytest.raises(BuildError, match="k_cache must be float8e4m3fn, not float16"):
        op.infer_dtypes(["float16"] * 4 + ["int64", "float32", "float32"])
    with pytest.raises(BuildError, match="v must be float16, not float32"):
        op.infer_dtypes(["float8e4m3fn", "float8e4m3fn", "float16", "float32", "int64", "float32", "float32"])
