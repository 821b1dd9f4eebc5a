"""The codes and scales of a written matrix."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from peagle.compiler.pipeline.quantize.write_shards import magnitude, scale_for
from peagle.plugins.number_types import to_e4m3

_FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(deadline=None, max_examples=60)
@given(values=hnp.arrays(np.float32, st.integers(1, 40), elements=_FINITE), cut=st.integers(0, 40))
def test_codes_match_ml_dtypes_and_nothing_is_lost(values: np.ndarray, cut: int) -> None:
    scale = scale_for(max(magnitude(values[:cut]), magnitude(values[cut:])))
    assert scale > 0
    found, expected = to_e4m3(values / scale), (values / scale).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(found, expected.view(np.uint8))
    assert np.isfinite(expected.astype(np.float32)).all()


@pytest.mark.parametrize(("amax", "scale"), [(448.0, 1.0), (0.0, 1.0), (1e-36, 1.0), (896.0, 2.0)])
def test_a_scale_is_a_positive_number(amax: float, scale: float) -> None:
    assert scale_for(amax) == np.float32(scale)
