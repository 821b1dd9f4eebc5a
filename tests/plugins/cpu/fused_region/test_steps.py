"""The small steps of a fused region equal NumPy, have the same bits for all instruction sets, and are per token."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.cpu.fused_region.programs import fused_region
from tests.plugins.cpu.sessions import paths_here
from tests.plugins.same_bits import same_bits

few = settings(max_examples=12, deadline=None)
EPSILON = 1e-5
BITS = f"#{struct.unpack('<I', struct.pack('<f', EPSILON))[0]:08x}"


def normed(x: Any, weight: Any) -> Any:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPSILON) * weight


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ONE: dict[str, Callable[[Any], Any]] = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x.astype(np.float64))),
    "Tanh": np.tanh,
    "Gelu": gelu,
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}


def numbers(rng: Any, *shape: int) -> Any:
    """Of many sizes."""
    return (rng.normal(size=shape) * 2.0 ** rng.integers(-12, 7, size=shape)).astype(np.float32)


def held(library: Path, program: str, inputs: dict[str, Any], fed: dict[str, Any], expected: list[Any]) -> None:
    """Against NumPy, on every path to the bit, and token by token."""
    first = fused_region(library, program, inputs, len(expected))(**fed)
    for ours, theirs in zip(first, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)
    for path in paths_here(library):
        run = fused_region(library, program, inputs, len(expected), path, threads=2)
        for ours, theirs in zip(run(**fed), first, strict=True):
            same_bits(ours, theirs)
        columns = next(iter(fed.values())).shape[1]
        for column in range(columns):
            alone = run(**{name: x[:, column : column + 1] for name, x in fed.items()})
            for ours, theirs in zip(alone, first, strict=True):
                same_bits(ours, theirs[:, column : column + 1])


@few
@given(st.sampled_from([*ONE]), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_activations(cpu_library: Path, op: str, width: int, seed: int) -> None:
    x = numbers(np.random.default_rng(seed), 2, 3, width)
    held(cpu_library, f"{op} 0 > 1\noutputs 1", {"x": "float32"}, {"x": x}, [ONE[op](x)])


@few
@given(st.sampled_from([*TWO]), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_two_streams(cpu_library: Path, op: str, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, z = numbers(rng, 2, 3, width), numbers(rng, 2, 3, width)
    fed = {"x": x, "z": z}
    held(cpu_library, f"{op} 0,1 > 2\noutputs 2", dict.fromkeys(fed, "float32"), fed, [TWO[op](x, z)])


@pytest.mark.parametrize("shape", [(40,), (1,), (), (1, 1, 40), (3, 1)])
@pytest.mark.parametrize("is_first", [True, False])
def test_residual_stream_and_branches(cpu_library: Path, shape: tuple[int, ...], is_first: bool) -> None:
    rng = np.random.default_rng(0)
    x, other = numbers(rng, 2, 3, 40), numbers(rng, *shape).reshape(shape)
    order = "1,0" if is_first else "0,1"
    expected = other - x if is_first else x - other
    (y,) = fused_region(cpu_library, f"Sub {order} > 2\noutputs 2", {"x": "float32", "c": other}, 1)(x=x)
    np.testing.assert_array_equal(y, expected)


@few
@given(st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_norms(cpu_library: Path, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, z, weight = numbers(rng, 2, 3, width), numbers(rng, 2, 3, width), numbers(rng, width)
    program = f"RMSNormalization 0,1 > 2 epsilon={BITS}\noutputs 2"
    held(cpu_library, program, {"x": "float32", "w": weight}, {"x": x}, [normed(x, weight)])
    program = f"SkipSimplifiedLayerNormalization 0,1,2 > 3,-,-,4 epsilon={BITS}\noutputs 3,4"
    inputs = {"x": "float32", "z": "float32", "w": weight}
    held(cpu_library, program, inputs, {"x": x, "z": z}, [normed(x + z, weight), x + z])


@few
@given(st.integers(1, 3), st.sampled_from([(4, 4), (6, 2), (64, 64), (70, 34)]), st.integers(0, 2**32 - 1))
def test_rotations(cpu_library: Path, heads: int, sizes: tuple[int, int], seed: int) -> None:
    (size, turned), rng = sizes, np.random.default_rng(seed)
    x, half = rng.normal(size=(2, heads, 5, size)).astype(np.float32), turned // 2
    cos, sin = rng.normal(size=(2, 20, half)).astype(np.float32)
    at = rng.integers(0, 20, (2, 5))
    c, s = cos[at][:, None], sin[at][:, None]
    first, second = x[..., :half], x[..., half : 2 * half]
    expected = np.concatenate([c * first - s * second, s * first + c * second, x[..., 2 * half :]], axis=-1)
    inputs = {"x": "float32", "cos": cos, "sin": sin, "at": "int64"}
    for path in paths_here(cpu_library):
        run = fused_region(cpu_library, "RotaryEmbedding 0,1,2,3 > 4\noutputs 4", inputs, 1, path, threads=2)
        same_bits(run(x=x, at=at)[0], expected)
    with pytest.raises(Exception, match="position 20 is out of range"):
        run(x=x, at=np.full((2, 5), 20))


@few
@given(st.lists(st.integers(1, 20), min_size=2, max_size=8), st.integers(0, 2**32 - 1))
def test_rows_are_joined(cpu_library: Path, widths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    fed = {f"x{at}": numbers(rng, 2, 3, width) for at, width in enumerate(widths)}
    program = f"Concat {','.join(map(str, range(len(fed))))} > {len(fed)}\noutputs {len(fed)}"
    held(cpu_library, program, dict.fromkeys(fed, "float32"), fed, [np.concatenate([*fed.values()], axis=-1)])


def test_gather_returns_rows_and_rejects_missing_ones(cpu_library: Path) -> None:
    x, at = numbers(np.random.default_rng(0), 7, 20), np.array([[6, 0, -7], [-1, 3, 3]])
    inputs = {"x": "float32", "at": "int64"}
    run = fused_region(cpu_library, "Tanh 0 > 2\nGather 2,1 > 3\nTanh 3 > 4\noutputs 4", inputs, 1, threads=2)
    np.testing.assert_allclose(run(x=x, at=at)[0], np.tanh(np.tanh(x[at])), rtol=2e-6)
    for wild in (7, -8):
        with pytest.raises(Exception, match=f"row {wild} is out of range: the matrix has 7 rows"):
            run(x=x, at=np.array([wild]))


def test_non_finite_numbers_stay_in_their_row(cpu_library: Path) -> None:
    x = numbers(np.random.default_rng(1), 1, 3, 40)
    program = f"RMSNormalization 0,1 > 2 epsilon={BITS}\nSigmoid 2 > 3\noutputs 3"
    run = fused_region(cpu_library, program, {"x": "float32", "w": np.ones(40, np.float32)}, 1)
    expected = run(x=x)[0]
    wild = x.copy()
    wild[0, 1, 7] = np.nan
    (y,) = run(x=wild)
    same_bits(y[:, [0, 2]], expected[:, [0, 2]])
    assert np.isnan(y[0, 1]).all()
