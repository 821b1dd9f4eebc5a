"""WideLinear: a row's bits depend only on that row and the matrix, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from peagle.plugins.ops.wide_linear.packed_matrix import pack_matrix, packed_shape, unpack_matrix
from tests.plugins.cpu.sessions import kernel_session, paths_here
from tests.plugins.same_bits import same_bits

OP = "WideLinear"
few = settings(max_examples=30, deadline=None)


def reference(x: Any, matrix: Any) -> Any:
    return OPS[OP].reference(x, pack_matrix(matrix), rows=len(matrix))[0]


def linear(library: Path, matrix: Any, path: str, threads: int = 1) -> Any:
    """``run(x) -> y`` of the kernel on one path."""
    constants = {"matrix": pack_matrix(matrix)}
    made = kernel_session(library, OP, "float32", constants, {"rows": len(matrix)}, path, threads)
    return lambda x: made.run(None, {"x": x})[0]


@st.composite
def cases(draw: Any) -> tuple[Any, Any]:
    """A matrix, and numbers of every size to multiply with, some of them not finite."""
    rows, columns = draw(st.integers(1, 150)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lead = draw(st.sampled_from([(), (0,), (1,), (5,), (13,), (2, 3)]))
    matrix = rng.normal(size=(rows, columns)).astype(np.float32)
    x = rng.normal(size=(*lead, columns)).astype(np.float32)
    kind = draw(st.sampled_from(["plain", "sizes", "cancelling", "not finite"]))
    if kind == "sizes":  # down to subnormal numbers and up to overflow
        x *= np.float32(2.0) ** rng.integers(-140, 127, size=x.shape).astype(np.float32)
    if kind == "cancelling":  # what is left of a sum is what was rounded away
        x = np.where(rng.random(x.shape) < 0.5, np.roll(x, 1, -1), -x).astype(np.float32)
        matrix = np.sign(matrix).astype(np.float32) * np.float32(1 + 2**-12)
    if kind == "not finite":
        x[rng.random(x.shape) < 0.02] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return matrix, x


@few
@given(cases())
def test_the_kernel_gives_the_bits_of_the_reference_on_every_path(cpu_library: Path, case: Any) -> None:
    matrix, x = case
    expected = reference(x, matrix)
    for path in paths_here(cpu_library):
        same_bits(linear(cpu_library, matrix, path)(x), expected)


def test_row_is_independent_of_other_rows(cpu_library: Path) -> None:
    """Windows of every width up to what strips and threads divide, on every path, with one thread and with three."""
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(1013, 61)).astype(np.float32)  # several pieces, and a last tile that is not full
    x = rng.normal(size=(109, 61)).astype(np.float32)
    alone = linear(cpu_library, matrix, "portable")
    expected = np.concatenate([alone(row[None]) for row in x])
    for path in paths_here(cpu_library):
        for threads in (1, 3):
            run = linear(cpu_library, matrix, path, threads)
            for width in (*range(1, 16), 47, 49, 109):
                start = int(rng.integers(0, len(x) - width + 1))
                same_bits(run(x[start : start + width]), expected[start : start + width])
            order = rng.permutation(len(x))
            same_bits(run(x[order].reshape(1, *x.shape))[0], expected[order])


def test_other_rows_do_not_matter_however_wild(cpu_library: Path) -> None:
    rng = np.random.default_rng(2)
    matrix, x = rng.normal(size=(70, 20)).astype(np.float32), rng.normal(size=(6, 20)).astype(np.float32)
    for path in paths_here(cpu_library):
        run = linear(cpu_library, matrix, path)
        expected = run(x)
        for wild in (np.nan, np.inf, 3e38):
            among = x.copy()
            among[[0, 2, 5]] = wild
            same_bits(run(among)[[1, 3, 4]], expected[[1, 3, 4]])


@few
@given(cases())
def test_body_matches_the_reference_except_last_digits(run_body: Any, case: Any) -> None:
    matrix, x = case
    x = np.nan_to_num(x).clip(-1e30, 1e30)  # sums in another order overflow elsewhere
    x = x.reshape(1, x.size // x.shape[-1], x.shape[-1])
    (body,) = run_body(OP, [x, pack_matrix(matrix)], rows=len(matrix))
    sizes = np.abs(x) @ np.abs(matrix).T
    np.testing.assert_array_less(np.abs(body - reference(x, matrix)), 1e-5 * sizes + 1e-25)


def test_the_product_is_that_of_the_numbers() -> None:
    rng = np.random.default_rng(4)
    matrix, x = rng.normal(size=(30, 128)).astype(np.float32), rng.normal(size=(9, 128)).astype(np.float32)
    exact = x.astype(np.float64) @ matrix.T.astype(np.float64)
    sizes = np.abs(x.astype(np.float64)) @ np.abs(matrix.T.astype(np.float64))
    assert (np.abs(reference(x, matrix) - exact) <= 128 * 2.0**-24 * sizes).all()


@few
@given(st.integers(1, 50), st.integers(1, 9))
def test_unpacking_restores_the_matrix(rows: int, columns: int) -> None:
    matrix = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    packed = pack_matrix(matrix)
    assert packed.shape == packed_shape(rows, columns)
    np.testing.assert_array_equal(unpack_matrix(packed, rows), matrix)
    np.testing.assert_array_equal(packed.sum(dtype=np.float64), matrix.sum(dtype=np.float64))  # filled up with zeros


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "fewer rows than a tile": ({"rows": 16}, "does not have 16 rows in tiles of 16"),
    "more rows than tiles": ({"rows": 33}, "does not have 33 rows"),
    "no rows": ({"rows": 0}, "does not have 0 rows"),
    "rows left out": ({"rows": None}, "does not have -1 rows"),
    "tiles of another size": ({"shape": (4, 9, 8)}, "matrix .4, 9, 8. does not have 20 rows"),
    "a matrix as it is stored elsewhere": ({"shape": (32, 9)}, "must be float32 with 3 dimensions"),
    "no columns": ({"shape": (2, 0, 16)}, "does not have 20 rows"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_packed_matrix_is_rejected_at_load(cpu_library: Path, what: str) -> None:
    change, complaint = REFUSED[what]
    matrix = np.zeros(change.get("shape", (2, 9, 16)), np.float32)
    rows = change.get("rows", 20)
    attributes = {} if rows is None else {"rows": rows}
    with pytest.raises(Exception, match=complaint):
        kernel_session(cpu_library, OP, "float32", {"matrix": matrix}, attributes, "portable", 1)


def test_misfit_input_is_rejected_at_run(cpu_library: Path) -> None:
    run = linear(cpu_library, np.zeros((20, 9), np.float32), "portable")
    for shape in ((3, 8), (3, 10), (0,), ()):
        with pytest.raises(Exception, match=r"x has \d+ columns, but the matrix has 9"):
            run(np.zeros(shape, np.float32))
    assert run(np.zeros((2, 0, 9), np.float32)).shape == (2, 0, 20)


def test_the_spec_knows_the_shapes() -> None:
    spec = OPS[OP]
    attributes = spec.check_attributes({"rows": 20})
    assert spec.infer_shapes([(2, 5, 64), (2, 64, 16)], attributes) == [(2, 5, 20)]
    with pytest.raises(BuildError, match="dimension C is 64, but 33 in another tensor"):
        spec.infer_shapes([(5, 33), (2, 64, 16)], attributes)
    with pytest.raises(BuildError, match="the tiles of the matrix have 8 rows, not 16"):
        spec.infer_shapes([(5, 64), (2, 64, 8)], attributes)
    with pytest.raises(BuildError, match="rows must be 1 or more"):
        spec.check_attributes({})
