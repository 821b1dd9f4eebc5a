"""WideEmbedding: rows of a packed matrix, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.ops import OPS
from peagle.plugins.ops.wide_linear.packed_matrix import pack_matrix
from tests.plugins.cpu.sessions import kernel_session

OP = "WideEmbedding"
few = settings(max_examples=30, deadline=None)


def embedding(library: Path, matrix: Any, threads: int = 1) -> Any:
    constants = {"matrix": pack_matrix(matrix)}
    made = kernel_session(library, OP, "int64", constants, {"rows": len(matrix)}, "", threads)
    return lambda ids: made.run(None, {"x": ids})[0]


@st.composite
def cases(draw: Any) -> tuple[Any, Any]:
    """A matrix of any bits, and ids; more of them than a piece has."""
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    matrix = rng.integers(0, 2**32, (rows, columns), np.uint32).view(np.float32)
    return matrix, rng.integers(0, rows, draw(st.sampled_from([(1, 0), (1, 1), (2, 3), (1, 50)])))


@few
@given(cases())
def test_kernel_body_and_reference_give_the_bits_of_the_matrix(cpu_library: Path, run_body: Any, case: Any) -> None:
    matrix, ids = case
    expected = matrix[ids].view(np.uint32)
    packed = pack_matrix(matrix)
    for rows in (
        OPS[OP].reference(ids, packed, rows=len(matrix))[0],
        embedding(cpu_library, matrix, threads=3)(ids),
        run_body(OP, [ids, packed], rows=len(matrix))[0],
    ):
        np.testing.assert_array_equal(rows.view(np.uint32), expected)


@pytest.mark.parametrize("wild", [-1, 20, 2**62, -(2**63)])
def test_ids_outside_of_the_matrix_are_refused(cpu_library: Path, wild: int) -> None:
    run = embedding(cpu_library, np.zeros((20, 4), np.float32))
    with pytest.raises(Exception, match=f"id {wild} is out of range: the matrix has 20 rows"):
        run(np.array([[3, wild]]))


def test_the_spec_knows_the_shapes() -> None:
    assert OPS[OP].infer_shapes([(2, 5), (2, 64, 16)], {"rows": 20}) == [(2, 5, 64)]
