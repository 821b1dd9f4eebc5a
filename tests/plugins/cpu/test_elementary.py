"""Exponential and tangent are accurate to the last digits, with the same bits for any vector width."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.plugins.cpu.compile import find_compilers
from peagle.plugins.cpu.sources import OPTIONS, text_of_headers
from tests.plugins.cpu.sessions import paths_here

FUNCTIONS = {"exponential": np.exp, "hyperbolic_tangent": np.tanh}
TARGETS = {
    "portable": "", "avx2": "PEAGLE_AVX2", "avx-vnni": "PEAGLE_AVX_VNNI", "avx512-vnni": "PEAGLE_AVX512_VNNI",
    "dotprod": "PEAGLE_DOT_PRODUCT",
}  # fmt: skip
LOOP = """
extern "C" __attribute__((visibility("default"))) {target}
void {name}_{at}(const float* __restrict x, float* __restrict y, long n) {{
  for (long i = 0; i < n; i++) y[i] = peagle::{name}(x[i]);
}}
"""

LOGARITHMS = """
extern "C" __attribute__((visibility("default"))) void logarithm(const double* x, double* y, long n) {
  for (long i = 0; i < n; i++) y[i] = peagle::logarithm(x[i]);
}
"""


@pytest.fixture(scope="module")
def loops(cpu_library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """For each function a loop over it for every path that this machine has."""
    text = text_of_headers("instructions.h", "elementary.h")
    paths = paths_here(cpu_library)
    for at, path in enumerate(paths):
        text += "".join(LOOP.format(target=TARGETS[path], name=name, at=at) for name in FUNCTIONS)
    text += LOGARITHMS
    library = tmp_path_factory.mktemp("elementary") / "loops.so"
    command = [*find_compilers()[0].command, *OPTIONS, "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=text, text=True, check=True)
    functions = ctypes.CDLL(str(library))
    every = {name: [functions[f"{name}_{at}"] for at in range(len(paths))] for name in FUNCTIONS}
    return every | {"logarithm": [functions.logarithm]}


def applied(function: Any, x: Any) -> Any:
    y = np.empty_like(x)
    pointers = (each.ctypes.data_as(ctypes.c_void_p) for each in (x, y))
    function(*pointers, ctypes.c_long(len(x)))
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_path_gives_the_same_bits_near_the_exact_value(loops: dict[str, list[Any]], name: str) -> None:
    x = np.arange(0, 2**32, 9973, np.uint32).view(np.float32)  # of every sign and exponent, NaN as well
    portable, *others = (applied(function, x) for function in loops[name])
    there = ~np.isnan(x)
    assert np.isnan(portable[~there]).all()
    for other in others:
        np.testing.assert_array_equal(other[there].view(np.int32), portable[there].view(np.int32))
        assert np.isnan(other[~there]).all()
    with np.errstate(over="ignore", under="ignore"):
        true = FUNCTIONS[name](x[there].astype(np.float64))
        rounded = true.astype(np.float32)
    infinite = np.isinf(rounded)
    np.testing.assert_array_equal(portable[there][infinite], rounded[infinite])
    unit = np.spacing(np.abs(rounded[~infinite])).astype(np.float64)
    assert (np.abs(portable[there][~infinite] - true[~infinite]) <= 1.5 * unit).all()


def test_range_ends_are_exact(loops: dict[str, list[Any]]) -> None:
    for exponential in loops["exponential"]:
        x = np.array([0.0, -0.0, -np.inf, np.inf, -200.0, 200.0], np.float32)
        np.testing.assert_array_equal(applied(exponential, x), np.array([1, 1, 0, np.inf, 0, np.inf], np.float32))
    for tangent in loops["hyperbolic_tangent"]:
        x = np.array([0.0, -np.inf, np.inf, -40.0, 40.0], np.float32)
        np.testing.assert_array_equal(applied(tangent, x), np.array([0, -1, 1, -1, 1], np.float32))


def test_the_logarithm_is_that_of_a_double(loops: dict[str, list[Any]]) -> None:
    rng = np.random.default_rng(0)
    near_one = 1 + rng.normal(size=10_000) * 2.0 ** rng.integers(-50, -3, 10_000)
    x = np.concatenate(
        [rng.random(10_000), 10.0 ** rng.uniform(-300, 300, 10_000), near_one, 2.0 ** np.arange(-149, 128)]
    )
    (logarithm,) = loops["logarithm"]
    true = np.log(x)
    assert (np.abs(applied(logarithm, x) - true) <= 3 * np.spacing(np.abs(true))).all()
    np.testing.assert_array_equal(applied(logarithm, np.array([0.0, 1.0])), [-np.inf, 0])
