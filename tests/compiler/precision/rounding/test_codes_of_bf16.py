"""The table of all BF16 values equals the rounding of each value."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from peagle.compiler.precision.rounding.codes_of_bf16 import codes_of_bf16, is_bf16, upper_halves

SCALES = st.floats(2.0**-100, 2.0**100, width=32)


@given(SCALES)
def test_every_number_has_the_code_that_it_is_rounded_to(scale: float) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    table, index = codes_of_bf16(scale), upper_halves(numbers)
    with np.errstate(over="ignore"):
        wanted = np.clip(numbers / np.float32(scale), -448, 448).astype(ml_dtypes.float8_e4m3fn)
        np.testing.assert_array_equal(table.codes[index], wanted.view(np.uint8))
        np.testing.assert_array_equal(table.moved[index], wanted.astype(np.float32) * np.float32(scale) - numbers)


@given(arrays.arrays(np.float32, (2, 3), elements=st.floats(-10, 10, width=32)))
def test_bf16_values_are_detected_by_lossless_conversion(values: np.ndarray) -> None:
    converted = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert is_bf16(converted)
    assert is_bf16(values) == np.array_equal(converted, values)


@pytest.mark.parametrize("value", [1 + 2.0**-8, np.float16(0.1), np.float32(2.0**-133 + 2.0**-140)])
def test_single_non_bf16_value_is_detected(value: float) -> None:
    values = np.ones((4, 4), np.float32)
    values[2, 3] = value
    assert not is_bf16(values)
