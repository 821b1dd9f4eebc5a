"""QuantizedEmbedding: rows of a packed matrix, the numbers that the blocks stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.ops import OPS
from peagle.plugins.ops.quantized_linear.packed_weights import unpack
from tests.plugins.cpu.sessions import kernel_session
from tests.plugins.ops.packed_cases import FORMATS, matrix

OP = "QuantizedEmbedding"
few = settings(max_examples=30, deadline=None, derandomize=True)


def embedding(library: Path, weights: Any, name: str, rows: int, columns: int) -> Any:
    attributes = {"format": name, "rows": rows, "columns": columns}
    made = kernel_session(library, OP, "int64", weights, attributes, "", 1)
    return lambda ids: made.run(None, {"x": ids})[0]


@st.composite
def cases(draw: Any) -> tuple[str, int, int, Any, Any]:
    """Format, rows and columns, a matrix with numbers of every size, and ids."""
    name, rows, blocks = draw(st.sampled_from(FORMATS)), draw(st.integers(1, 40)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    codes, scales = matrix(rng, name, rows, 32 * blocks)
    if draw(st.booleans()):  # subnormal, too
        scales = (scales * rng.choice([0, 1e-7, 1e-5, 1, 1e3], size=scales.shape)).astype(scales.dtype)
    ids = rng.integers(0, rows, draw(st.sampled_from([(1, 0), (1, 1), (2, 3)])))
    return name, rows, 32 * blocks, (codes, scales), ids


@few
@given(cases())
def test_kernel_and_body_give_the_bits_of_the_reference(cpu_library: Path, run_body: Any, case: Any) -> None:
    name, rows, columns, weights, ids = case
    attributes = {"format": name, "rows": rows, "columns": columns}
    (expected,) = OPS[OP].reference(ids, *weights, **attributes)
    np.testing.assert_array_equal(expected, unpack(name, weights[0], weights[1], rows)[ids])
    np.testing.assert_array_equal(embedding(cpu_library, weights, name, rows, columns)(ids), expected)
    np.testing.assert_array_equal(run_body(OP, [ids, *weights], **attributes)[0], expected)


@pytest.mark.parametrize("wild", [-1, 20, 2**62, -(2**63)])
def test_ids_outside_of_the_matrix_are_refused(cpu_library: Path, wild: int) -> None:
    run = embedding(cpu_library, matrix(np.random.default_rng(0), "q4_0", 20, 64), "q4_0", 20, 64)
    with pytest.raises(Exception, match=f"id {wild} is not one of 20 rows"):
        run(np.array([[3, wild]]))


def test_other_columns_than_the_matrix_has_are_refused(cpu_library: Path) -> None:
    with pytest.raises(Exception, match="codes have 64 columns, not 96"):
        embedding(cpu_library, matrix(np.random.default_rng(1), "q4_0", 20, 64), "q4_0", 20, 96)
