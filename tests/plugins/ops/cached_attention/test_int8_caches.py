"""int8 with a scale m * 2^e: the nearest codes, equal in NumPy, the kernel and the body."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.ops.cached_attention.int8_caches import FLAWED, codes_of, numbers_of
from tests.plugins.cpu.sessions import paths_here
from tests.plugins.ops.cached_attention.running import OPERANDS, attend

few = settings(max_examples=40, deadline=None)
ODD = (0.0, -0.0, 1e-45, 2.0**-90, 2.0**-91, 127.0, 128.0, 16129.0, 2.0**100, 3.4028235e38, np.nan, np.inf, -np.inf)


@st.composite
def rows(draw: Any) -> Any:
    """f32 [1, 1, n, size]: numbers of every magnitude, some rows with odd ones, some all zeros."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, size = draw(st.integers(1, 20)), draw(st.sampled_from([1, 12, 64, 80]))
    numbers = rng.normal(size=(count, size)) * np.exp2(rng.integers(-95, 120, size=(count, 1)))
    for row in range(count):
        if rng.random() < 0.3:
            numbers[row, rng.integers(0, size)] = rng.choice(ODD)
        if rng.random() < 0.1:
            numbers[row] = rng.choice(ODD)
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)[None, None]


@few
@given(rows())
def test_numbers_round_to_the_nearest_code_of_a_fitting_scale(numbers: Any) -> None:
    with np.errstate(all="ignore"):
        codes = codes_of(numbers)
        back, largest = numbers_of(codes), np.abs(numbers).max(axis=-1, keepdims=True)
    is_sound = np.isfinite(numbers).all(axis=-1)
    assert np.isnan(back[~is_sound]).all()
    assert (codes[..., -2][~is_sound] == FLAWED).all()
    m = codes[..., -2][is_sound]
    assert ((m == 0) | ((m >= 64) & (m <= 127))).all()
    most = np.maximum(largest * (0.5 / 127 * 65 / 64), 2.0**-90)  # half a step, which is at most a 64th too long
    assert (np.abs(back - numbers)[is_sound] <= np.broadcast_to(most, back.shape)[is_sound]).all()


@few
@given(rows())
def test_kernel_and_body_write_the_codes_of_the_reference(cpu_library: Path, run_body: Any, numbers: Any) -> None:
    with np.errstate(all="ignore"):
        expected = codes_of(numbers)
    queries, start = np.zeros_like(numbers), np.zeros(1, np.int64)
    case = dict(zip([operand.name for operand in OPERANDS], (queries, numbers, numbers), strict=False))
    case |= {"k_cache": np.zeros_like(expected), "v_cache": np.zeros_like(expected), "start": start}
    for path in paths_here(cpu_library):
        for written in attend(cpu_library, case, {"scale": 1.0}, path)[1:]:
            np.testing.assert_array_equal(written, expected)
    _, *caches = run_body("CachedAttention", [*case.values()], scale=1.0, scaled=1)
    for written in caches:
        np.testing.assert_array_equal(written, expected)


def test_flawed_position_is_nan_only_to_its_readers(cpu_library: Path) -> None:
    rng = np.random.default_rng(3)
    new = rng.normal(size=(1, 1, 3, 16)).astype(np.float32)
    new[0, 0, 1, 5] = np.inf
    case = {"q": new.copy(), "k": new, "v": new, "start": np.array([7])}
    case["q"][0, 0, 1] = 1
    case |= {name: codes_of(rng.normal(size=(1, 1, 12, 16))) for name in ("k_cache", "v_cache")}
    y = attend(cpu_library, case, {"scale": 1.0})[0]
    assert np.isfinite(y[:, 0]).all()
    assert np.isnan(y[:, 1:]).all()
