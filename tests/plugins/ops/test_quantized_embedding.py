"""QuantizedEmbedding: rows of a packed matrix, dequantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.ops import OPS
from peagle.plugins.ops.quantized_linear.packed_formats import PACKED_FORMATS
from peagle.plugins.ops.quantized_linear.packed_weights import unpack
from peagle.plugins.ops.quantized_linear.scale_layouts import StepsAndMin
from tests.plugins.cpu.sessions import kernel_session
from tests.plugins.ops.packed_cases import FORMATS, columns_of, matrix
from tests.plugins.same_bits import same_bits

OP = "QuantizedEmbedding"
few = settings(max_examples=30, deadline=None)


def embedding(library: Path, weights: Any, name: str, rows: int, columns: int) -> Any:
    attributes = {"format": name, "rows": rows, "columns": columns}
    made = kernel_session(library, OP, "int64", weights, attributes, "", 1)
    return lambda ids: made.run(None, {"x": ids})[0]


@st.composite
def cases(draw: Any) -> tuple[str, int, int, Any, Any]:
    """Format, rows and columns, a matrix with numbers of every size, and ids."""
    name, rows, blocks = draw(st.sampled_from(FORMATS)), draw(st.integers(1, 40)), draw(st.integers(1, 3))
    columns = columns_of(name, blocks)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    codes, scales = matrix(rng, name, rows, columns)
    if scales.dtype != np.uint8 and draw(st.booleans()):  # subnormal, too
        scales = (scales * rng.choice([0, 1e-7, 1e-5, 1, 1e3], size=scales.shape)).astype(scales.dtype)
    ids = rng.integers(0, rows, draw(st.sampled_from([(1, 0), (1, 1), (2, 3)])))
    return name, rows, columns, (codes, scales), ids


@few
@given(cases())
def test_kernel_and_body_give_the_bits_of_the_reference(cpu_library: Path, run_body: Any, case: Any) -> None:
    name, rows, columns, weights, ids = case
    attributes = {"format": name, "rows": rows, "columns": columns}
    (expected,) = OPS[OP].reference(ids, *weights, **attributes)
    np.testing.assert_array_equal(expected, unpack(name, weights[0], weights[1], rows)[ids])
    same_bits(embedding(cpu_library, weights, name, rows, columns)(ids), expected)
    same_bits(run_body(OP, [ids, *weights], **attributes)[0], expected)


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_and_every_kind_of_scale(cpu_library: Path, run_body: Any, name: str) -> None:
    """Random bytes as scales: numbers of float16 of every size and sign, zeros and subnormal ones."""
    rng = np.random.default_rng(2)
    rows, columns = 40, columns_of(name, 3)
    codes, scales = matrix(rng, name, rows, columns)
    scales = rng.integers(0, 256, scales.nbytes, np.uint8).view(scales.dtype).reshape(scales.shape)
    form = PACKED_FORMATS[name].scales
    if form.dtype == "uint8":
        odd = scales[..., 1 : 32 * form.halves : 2] if isinstance(form, StepsAndMin) else None
        scales[scales == 255] = 0
        if odd is not None:
            odd[odd & 0x7C == 0x7C] ^= 0x40
            odd[:, :, ::3] &= 0x83
    else:
        scales = np.nan_to_num(scales, nan=0, posinf=0, neginf=0)
    attributes = {"format": name, "rows": rows, "columns": columns}
    ids = np.arange(rows).reshape(1, -1)
    (expected,) = OPS[OP].reference(ids, codes, scales, **attributes)
    same_bits(embedding(cpu_library, (codes, scales), name, rows, columns)(ids), expected)
    same_bits(run_body(OP, [ids, codes, scales], **attributes)[0], expected)


@pytest.mark.parametrize("wild", [-1, 20, 2**62, -(2**63)])
def test_ids_outside_of_the_matrix_are_refused(cpu_library: Path, wild: int) -> None:
    run = embedding(cpu_library, matrix(np.random.default_rng(0), "q4_0", 20, 64), "q4_0", 20, 64)
    with pytest.raises(Exception, match=f"id {wild} is out of range: the matrix has 20 rows"):
        run(np.array([[3, wild]]))


def test_other_columns_than_the_matrix_has_are_refused(cpu_library: Path) -> None:
    with pytest.raises(Exception, match="codes have 64 columns, not 96"):
        embedding(cpu_library, matrix(np.random.default_rng(1), "q4_0", 20, 64), "q4_0", 20, 96)
