"""Number formats: one table, whose records are consistent with each other and with other modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.number_formats import (
    BF16,
    FP8,
    INT4,
    INT8,
    MXFP8,
    NUMBER_FORMATS,
    NumberFormat,
    Scheme,
    format_of_type,
    format_stored_as,
    keeps_blocks,
    kernels_of,
    quantized_formats,
    wide_formats,
)
from peagle.plugins.number_types import BY_NUMPY, MX_BLOCK
from peagle.plugins.ops.quantized_linear.packed_weights import BLOCK, FORMATS

EVERY = pytest.mark.parametrize("kind", NUMBER_FORMATS.values(), ids=NUMBER_FORMATS)


def schemes(kind: NumberFormat) -> list[Scheme]:
    """Every scheme of a format."""
    has = [on.scheme for on in (kind.tensorrt, kind.onnxruntime) if on]
    return [*has, *([kind.kernels.packed] if kind.kernels else []), *kind.takes.values()]


@EVERY
def test_a_record_names_types_formats_and_lowerings_that_exist(kind: NumberFormat) -> None:
    assert NUMBER_FORMATS[kind.name] is kind
    assert kind.number_type.numpy == kind.number
    assert {*kind.instead} <= {*NUMBER_FORMATS} - {kind.name}
    assert {scheme.codes for scheme in schemes(kind)} <= {*BY_NUMPY}
    assert {scheme.packed for scheme in schemes(kind)} <= {"", *FORMATS}
    if kind.kernels:
        parts = {kind.kernels.lm_head, kind.kernels.drafter, kind.kernels.embedding} - {""}
        assert parts <= {each.name for each in quantized_formats(tensorrt=False)}
    if kind.caches:
        assert {*kind.caches.lowerings} <= {*LOWERINGS}


@EVERY
def test_a_number_takes_no_less_than_its_code(kind: NumberFormat) -> None:
    assert kind.bits >= kind.number_type.bits


def test_every_other_format_is_quantized() -> None:
    assert [each.name for each in wide_formats()] == ["fp32", "fp16", "bf16"]
    assert [each.name for each in quantized_formats()] == ["fp8", "mxfp8", "int8", "int4", "stored"]
    assert quantized_formats(tensorrt=False) == quantized_formats()
    assert quantized_formats(tensorrt=True) == quantized_formats()
    assert [each.name for each in quantized_formats() if each.is_emulated] == ["fp8", "mxfp8"]
    assert kernels_of("int4") is INT4.kernels is not None
    assert kernels_of("bf16") is kernels_of("int5") is None
    assert [name for name in (*NUMBER_FORMATS, "int5") if keeps_blocks(name)] == ["stored"]


def test_stored_weight_type_maps_to_one_format() -> None:
    assert {stored: format_stored_as(stored) for stored in ("F8_E4M3", "Q8_0", "Q4_0", "Q4_1", "Q6_K")} == {
        "F8_E4M3": FP8, "Q8_0": INT8, "Q4_0": INT4, "Q4_1": INT4, "Q6_K": None,
    }  # fmt: skip


def test_element_type_maps_to_the_first_format_that_has_it() -> None:
    assert [format_of_type(each) for each in ("bfloat16", "float8e4m3fn", "int8")] == [BF16, FP8, INT8]
    assert format_of_type("int64") is None


def test_blocks_match_the_kernels() -> None:
    assert MXFP8.tensorrt is not None
    assert MXFP8.tensorrt.scheme.block == MX_BLOCK
    assert {scheme.block for scheme in schemes(INT4) if scheme.packed} == {BLOCK}


def test_a_block_divides_the_columns_and_has_the_minimum_size() -> None:
    scheme = Scheme("int8", block=64, smallest=16)
    assert [scheme.block_for(columns) for columns in (128, 64, 96, 48, 40)] == [64, 64, 32, 16, 0]
    assert Scheme("int4", block=128, several=True).block_for(128) == 64
    assert Scheme("float8_e4m3fn", block=32, powers=True).block_for(40) == 32, "a row is filled up"


def test_gpus_have_a_format_from_one_on_or_are_named() -> None:
    assert FP8.tensorrt is not None
    assert MXFP8.tensorrt is not None
    assert [FP8.tensorrt.runs_on(sm) for sm in (80, 89, 120)] == [False, True, True]
    assert [MXFP8.tensorrt.runs_on(sm) for sm in (90, 100, 120)] == [False, True, False]


def test_drafters_use_weight_only_formats() -> None:
    assert [each.name for each in quantized_formats() if each.drafts(tensorrt=True)] == ["int8", "int4"]
    assert [each.name for each in quantized_formats() if each.drafts(tensorrt=False)] == ["fp8", "int8", "int4"]
    assert not BF16.drafts(tensorrt=True)


def test_records_are_plain_data_without_heavy_imports() -> None:
    code = "import sys, peagle.plugins.number_formats; print({'numpy', 'torch', 'onnx', 'ml_dtypes'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
