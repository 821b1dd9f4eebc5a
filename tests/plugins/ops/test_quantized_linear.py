"""QuantizedLinear: a row's bits depend only on that row and the matrix, on any machine."""

from __future__ import annotations

import ctypes
import ctypes.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from peagle.plugins.ops.quantized_linear.packed_formats import PACKED_FORMATS
from peagle.plugins.ops.quantized_linear.packed_weights import (
    code_shape,
    columns_multiple,
    gguf_codes,
    gguf_scales,
    pack_codes,
    pack_gguf,
    pack_scales,
    row_scale_shape,
    scale_dtype,
    scale_shape,
    unpack,
)
from peagle.plugins.ops.quantized_linear.reference import NEGLIGIBLE, fused_multiply_add, round_block
from peagle.plugins.ops.quantized_linear.scale_layouts import StepsAndMin
from tests.plugins.cpu.sessions import kernel_session, paths_here, session
from tests.plugins.ops.packed_cases import FORMATS, GGUF_FORMATS, columns_of, gguf_blocks, matrix
from tests.plugins.same_bits import same_bits

OP = "QuantizedLinear"
few = settings(max_examples=40, deadline=None)


def reference(x: Any, weights: Any, name: str, rows: int) -> Any:
    return OPS[OP].reference(x, *weights, format=name, rows=rows)[0]


def linear(library: Path, weights: Any, name: str, rows: int, path: str, threads: int = 1) -> Any:
    """``run(x) -> y`` of the kernel on one path."""
    made = kernel_session(library, OP, "float32", weights, {"format": name, "rows": rows}, path, threads)
    return lambda x: made.run(None, {"x": x})[0]


@st.composite
def cases(draw: Any) -> tuple[str, int, Any, Any]:
    """Format, rows of the matrix, matrix, and numbers of every size to multiply with, some of them not finite."""
    name = draw(st.sampled_from(FORMATS))
    rows, blocks = draw(st.integers(1, 50)), columns_of(name, draw(st.integers(1, 5))) // 32
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lead = draw(st.sampled_from([(), (0,), (1,), (5,), (13,), (2, 3)]))
    x = rng.normal(size=(*lead, blocks, 32)).astype(np.float32)
    x *= np.float32(2.0) ** rng.integers(-110, 121, size=(*lead, blocks, 1)).astype(np.float32)
    kind = draw(st.sampled_from(["plain", "zeros", "ties", "edge", "not finite"]))
    if kind == "zeros":
        x[..., rng.random((*lead, blocks)) < 0.5, :] = 0
    if kind == "ties":  # 127 multiples, and what lies between two
        x = rng.integers(-254, 255, x.shape).astype(np.float32) / 2
        x[..., 0] = 127
    if kind == "edge":
        x = np.where(rng.random(x.shape) < 0.5, NEGLIGIBLE, np.nextafter(np.float32(NEGLIGIBLE), 0)).astype(np.float32)
    if kind == "not finite":
        x[rng.random(x.shape) < 0.02] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return name, rows, matrix(rng, name, rows, 32 * blocks), x.reshape(*lead, 32 * blocks)


@few
@given(cases())
def test_the_kernel_gives_the_bits_of_the_reference_on_every_path(cpu_library: Path, case: Any) -> None:
    name, rows, weights, x = case
    expected = reference(x, weights, name, rows)
    for path in paths_here(cpu_library):
        same_bits(linear(cpu_library, weights, name, rows, path)(x), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_row_is_independent_of_other_rows(cpu_library: Path, name: str) -> None:
    """Windows of every width up to what strips and threads divide, on every path, with one thread and with three."""
    rng = np.random.default_rng(1)
    rows, columns = 1013, columns_of(name, 3)  # several pieces, and a last tile that is not full
    weights = matrix(rng, name, rows, columns)
    x = rng.normal(size=(109, columns)).astype(np.float32)
    alone = linear(cpu_library, weights, name, rows, "portable")
    expected = np.concatenate([alone(row[None]) for row in x])
    for path in paths_here(cpu_library):
        for threads in (1, 3):
            run = linear(cpu_library, weights, name, rows, path, threads)
            for width in (*range(1, 14), 47, 49, 109):
                start = int(rng.integers(0, len(x) - width + 1))
                same_bits(run(x[start : start + width]), expected[start : start + width])
            order = rng.permutation(len(x))
            same_bits(run(x[order].reshape(1, -1, columns))[0], expected[order])


@pytest.mark.parametrize("name", FORMATS)
def test_other_rows_do_not_matter_however_wild(cpu_library: Path, name: str) -> None:
    rng, columns = np.random.default_rng(2), columns_of(name, 2)
    weights = matrix(rng, name, 40, columns)
    x = rng.normal(size=(6, columns)).astype(np.float32)
    for path in paths_here(cpu_library):
        run = linear(cpu_library, weights, name, 40, path)
        expected = run(x)
        for wild in (np.nan, np.inf, 3e38):
            among = x.copy()
            among[[0, 2, 5]] = wild
            same_bits(run(among)[[1, 3, 4]], expected[[1, 3, 4]])


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FORMATS)
def test_non_finite_number_makes_its_row_nan(run_body: Any, name: str, wild: float) -> None:
    rng, columns = np.random.default_rng(3), columns_of(name, 2)
    weights = matrix(rng, name, 5, columns)
    x = rng.normal(size=(3, columns)).astype(np.float32)
    x[1, 40] = wild
    expected = reference(x, weights, name, 5)
    assert np.isnan(expected[1]).all()
    assert np.isfinite(expected[[0, 2]]).all()
    (body,) = run_body(OP, [x[None], *weights], format=name, rows=5)
    np.testing.assert_array_equal(np.isnan(body[0]), np.isnan(expected))


@few
@given(cases())
def test_body_matches_the_reference_except_last_digits(run_body: Any, case: Any) -> None:
    name, rows, weights, x = case
    x = np.nan_to_num(x).clip(-1e30, 1e30)  # sums in another order overflow elsewhere
    x = x.reshape(1, x.size // x.shape[-1], x.shape[-1])
    (body,) = run_body(OP, [x, *weights], format=name, rows=rows)
    sizes = np.abs(x) @ np.abs(unpack(name, weights[0], weights[1], rows)).T
    np.testing.assert_array_less(np.abs(body - reference(x, weights, name, rows)), 1e-5 * sizes + 1e-25)


@pytest.mark.parametrize("name", FORMATS)
def test_product_is_within_half_a_step(name: str) -> None:
    rng, columns = np.random.default_rng(4), columns_of(name, 4)
    weights = matrix(rng, name, 30, columns)
    x = rng.normal(size=(9, columns)).astype(np.float32)
    wide = unpack(name, *weights, 30).astype(np.float64)
    half_steps = np.abs(x.reshape(9, -1, 32)).max(axis=-1, keepdims=True) / 127 / 2
    most = np.broadcast_to(half_steps, (9, columns // 32, 32)).reshape(9, columns) @ np.abs(wide).T
    error = np.abs(reference(x, weights, name, 30) - x.astype(np.float64) @ wide.T)
    assert (error <= most * 1.001).all()
    assert error.max() > most.min() / 100, "nothing was rounded"


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_gguf_blocks_match_ggml(name: str) -> None:
    """Bit for bit, zeros of both signs and subnormal scales too."""
    rng, columns = np.random.default_rng(5), 3 * 256
    rows = gguf_blocks(rng, name, 21, columns)
    kind = PACKED_FORMATS[name].gguf
    assert kind is not None
    blocks = rows.reshape(21, -1, kind.size)
    for at in kind.halves:
        blocks[7, :, at : at + 2] = [0, 0x80]  # -0
        blocks[8, :, at + 1] = [0x80 * (block % 2) + block % 4 for block in range(blocks.shape[1])]
    for at in kind.exponents:
        blocks[7:9, :, at] = [[0, 1, 2, 250] * (blocks.shape[1] // 4)] * 2
    ggml = dequantize(rows, GGMLQuantizationType[name.upper()])
    packed = pack_gguf(name, rows)
    np.testing.assert_array_equal(unpack(name, *packed, 21).view(np.int32), ggml.view(np.int32))


def test_int8_codes_mean_code_times_scale() -> None:
    rng = np.random.default_rng(6)
    codes = rng.integers(-128, 128, (33, 64), dtype=np.int8)
    scales = rng.random((33, 1), np.float32)
    packed = pack_codes("int8", codes), pack_scales("int8", scales)
    np.testing.assert_array_equal(unpack("int8", *packed, 33), codes * scales)


@pytest.mark.parametrize("name", FORMATS)
def test_shapes_are_known_before_anything_is_packed(name: str) -> None:
    columns = columns_of(name, 3)
    codes, scales = matrix(np.random.default_rng(13), name, 33, columns)
    assert (codes.shape, scales.shape) == (code_shape(name, 33, columns), scale_shape(name, 33, columns))
    assert (codes.dtype, scales.dtype) == ("uint8", scale_dtype(name))


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_row_scales_have_the_declared_shape(name: str) -> None:
    rows = gguf_blocks(np.random.default_rng(15), name, 5, columns := columns_of(name, 3))
    scales = gguf_scales(name, rows)
    assert scales.shape == (5, *row_scale_shape(name, columns))
    assert scales.dtype == scale_dtype(name)
    assert gguf_codes(name, rows).shape == (5, columns)


@pytest.mark.parametrize("name", FORMATS)
def test_whole_tiles_are_packed_one_by_one_as_all_at_once(name: str) -> None:
    rng = np.random.default_rng(14)
    codes = rng.integers(0, 16, (40, columns_of(name, 2)), dtype=np.int8)
    tiles = [pack_codes(name, codes[at : at + 16]) for at in (0, 16, 32)]
    np.testing.assert_array_equal(np.concatenate(tiles), pack_codes(name, codes))
    if name in GGUF_FORMATS:
        scales = gguf_scales(name, gguf_blocks(rng, name, 40, columns_of(name, 2)))
        tiles = [pack_scales(name, scales[at : at + 16]) for at in (0, 16, 32)]
        np.testing.assert_array_equal(np.concatenate(tiles), pack_scales(name, scales))


@pytest.mark.parametrize("name", FORMATS)
def test_largest_sums_fit(cpu_library: Path, name: str) -> None:
    """Codes that are all the largest or all the smallest, times inputs that are: narrow sums must not overflow."""
    columns = columns_of(name, 8)
    form = PACKED_FORMATS[name]
    extremes = (-128, 127) if form.bits == 8 else (0, (1 << form.bits) - 1)
    if form.values:
        extremes = (int(np.argmin(form.values)), int(np.argmax(form.values)))
    codes = np.repeat(extremes, [16, 17]).astype(np.int8)[:, None].repeat(columns, axis=1)
    scales = np.full((33, *row_scale_shape(name, columns)), 0x7F if scale_dtype(name) == "uint8" else 3)
    if isinstance(form.scales, StepsAndMin):
        scales[..., 1 : 2 * form.scales.halves : 2] = 0x3C  # d about 1; steps 127
        scales[::2, :, 2 * form.scales.halves :] = 0x80  # of q6_k -128
    weights = pack_codes(name, codes), pack_scales(name, scales)
    x = np.ones((4, columns), np.float32)
    x[1], x[2, ::2], x[3, : columns // 2] = -1, -1, -1
    expected = reference(x, weights, name, 33)
    for path in paths_here(cpu_library):
        same_bits(linear(cpu_library, weights, name, 33, path)(x), expected)


def test_rounding_is_to_the_nearest_and_ties_go_to_even() -> None:
    x = np.zeros(32, np.float32)
    x[:6] = 127, 0.5, 1.5, 2.5, -0.5, 126.4
    codes, scale = round_block(x)
    assert scale == 1
    assert codes[:6].tolist() == [127, 0, 2, 2, 0, 126]


def test_the_reference_fuses_as_the_processor_does() -> None:
    """Any bits, and sums that cancel or that are near the middle of two values."""
    fma = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fma.restype, fma.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    rng = np.random.default_rng(12)
    wild = rng.integers(0, 2**32, (3, 5000), np.uint32).view(np.float32)
    a, b = rng.normal(size=(2, 5000)).astype(np.float32)
    near = -a * b * (1 + np.exp2(rng.integers(-30, 30, 5000)).astype(np.float32))
    for numbers in (wild, np.stack([a, b, near])):
        with np.errstate(all="ignore"):
            ours = fused_multiply_add(*numbers)
        same_bits(ours, np.array([fma(*each) for each in numbers.T.tolist()], np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_kernel_runs_instead_of_the_body_when_available(cpu_library: Path, body_model: Any, name: str) -> None:
    from onnx import numpy_helper

    rng, columns = np.random.default_rng(7), columns_of(name, 2)
    weights = matrix(rng, name, 20, columns)
    x = rng.normal(size=(1, 4, columns)).astype(np.float32)
    dtypes = ("float32", "uint8", str(weights[1].dtype))
    model = type(given := body_model(OP, dtypes, (("format", name), ("rows", 20))))()
    model.CopyFrom(given)
    for label, array in zip(("codes", "scales"), weights, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(array, label))
    model.graph.input.remove(model.graph.input[1]), model.graph.input.remove(model.graph.input[1])
    text = model.SerializeToString()
    expected = reference(x, weights, name, 20)
    with_kernel, without = (session(place, text).run(None, {"x": x})[0] for place in (cpu_library, None))
    same_bits(with_kernel, expected)
    assert (without != expected).any(), "the body would have given the same bits"
    np.testing.assert_allclose(without, expected, rtol=1e-3, atol=1e-3)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no format": ({"format": ""}, "format is ''"),
    "an unknown format": ({"format": "q2_k"}, f"format is 'q2_k', but must be one of {', '.join(FORMATS)}"),
    "codes of another format": ({"format": "q4_0"}, "do not match 20 rows of q4_0"),
    "fewer rows than a tile": ({"rows": 16}, "do not match 16 rows"),
    "more rows than tiles": ({"rows": 33}, "do not match 33 rows"),
    "no rows": ({"rows": 0}, "do not match 0 rows"),
    "rows left out": ({"rows": None}, "do not match -1 rows"),
    "scales of another type": ({"scales": np.float32}, "of type 1 do not match q8_0"),
    "scales of another matrix": ({"blocks": 1}, "do not match q8_0"),
    "a part of a superblock": ({"of": "q4_k", "format": "q4_k", "less": 1}, "do not match 20 rows of q4_k"),
    "scales of other superblocks": ({"of": "q6_k", "format": "q6_k", "less": 8}, "do not match q6_k"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_packed_matrix_is_rejected_at_load(cpu_library: Path, what: str) -> None:
    change, complaint = REFUSED[what]
    name = change.get("of", "q8_0")
    codes, scales = matrix(np.random.default_rng(8), name, 20, 2 * columns_multiple(name))
    attributes = {"format": change.get("format", "q8_0"), "rows": change.get("rows", 20)}
    codes = codes[:, : codes.shape[1] - change.get("less", 0)]
    scales = scales[:, : change.get("blocks", 2)].astype(change.get("scales", scales.dtype))
    given = {name: value for name, value in attributes.items() if value is not None}
    with pytest.raises(Exception, match=complaint):
        kernel_session(cpu_library, OP, "float32", (codes, scales), given, "portable", 1)


def test_misfit_input_is_rejected_at_run(cpu_library: Path) -> None:
    run = linear(cpu_library, matrix(np.random.default_rng(9), "q4_1", 20, 64), "q4_1", 20, "portable")
    for shape in ((3, 32), (3, 63), (0,), ()):
        with pytest.raises(Exception, match=r"x has \d+ columns, but the weight has 64"):
            run(np.zeros(shape, np.float32))
    assert run(np.zeros((2, 0, 64), np.float32)).shape == (2, 0, 20)


def test_instructions_that_do_not_exist_are_refused(cpu_library: Path) -> None:
    weights = matrix(np.random.default_rng(10), "int8", 16, 32)
    with pytest.raises(Exception, match="PEAGLE_CPU_INSTRUCTIONS is sse9"):
        linear(cpu_library, weights, "int8", 16, "sse9")


def test_matrices_that_are_not_whole_blocks_are_not_packed() -> None:
    with pytest.raises(BuildError, match="33 columns are not a multiple of the block size, 32"):
        pack_codes("int8", np.zeros((4, 33), np.int8))
    with pytest.raises(BuildError, match="96 columns are not a multiple of the block size, 256"):
        pack_codes("q4_k", np.zeros((4, 96), np.int8))
    with pytest.raises(BuildError, match="GGUF files have no blocks of int8"):
        pack_gguf("int8", np.zeros((4, 34), np.uint8))
    with pytest.raises(BuildError, match="not a multiple of the block size of q4_0"):
        pack_gguf("q4_0", np.zeros((4, 19), np.uint8))
    for empty in (np.zeros((0, 34), np.uint8), np.zeros((3, 0), np.uint8)):
        with pytest.raises(BuildError, match="not a multiple of the block size of q8_0"):
            pack_gguf("q8_0", empty)


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_scales_that_are_not_finite_are_not_packed(name: str) -> None:
    rows = gguf_blocks(np.random.default_rng(11), name, 3, columns_of(name, 2))
    kind = PACKED_FORMATS[name].gguf
    assert kind is not None
    for at, byte in [(at + 1, 0x7C) for at in kind.halves] + [(at, 0xFF) for at in kind.exponents]:
        among = rows.copy()
        among[1, len(rows[1]) - kind.size + at] = byte  # infinity or NaN
        with pytest.raises(BuildError, match="a scale that is NaN or infinite"):
            pack_gguf(name, among)


def test_the_error_says_whose_scale_is_wrong_and_how() -> None:
    with pytest.raises(BuildError, match="up_proj has a scale that is NaN or infinite") as damaged:
        pack_scales("int8", np.array([[1], [np.nan]]), "up_proj")
    assert "download" in damaged.value.fix
    with pytest.raises(BuildError, match="up_proj has a scale that is too large for its type, float16") as large:
        pack_scales("q4_0", np.array([[65520.0]]), "up_proj")
    assert "--exclude" in large.value.fix


def test_the_spec_knows_the_shapes() -> None:
    spec = OPS[OP]
    attributes = spec.check_attributes({"format": "q4_1", "rows": 20})
    assert spec.infer_shapes([(2, 5, 64), (2, 2, 256), (2, 2, 32)], attributes) == [(2, 5, 20)]
    with pytest.raises(BuildError, match="x has 33 columns, but the matrix has 64: K must be a multiple of 32"):
        spec.infer_shapes([(5, 33), (2, 2, 256), (2, 2, 32)], attributes)
    with pytest.raises(BuildError, match="tiles is 3, but 2 in another tensor"):
        spec.infer_shapes([(5, 64), (2, 2, 256), (3, 2, 32)], attributes)
    with pytest.raises(BuildError, match=f"format must be one of {', '.join(FORMATS)}; rows must be 1 or more"):
        spec.check_attributes({})
