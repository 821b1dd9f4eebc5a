"""Linears with 4-bit and 8-bit codes on ONNX Runtime: results, bytes read, and unsupported cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.lowering.ort.linears import MatMulNBitsFusion
from peagle.graphs.lowering.shared_passes import finish
from peagle.graphs.quantization import QuantizedWeight, products_of, quantize
from peagle.graphs.quantization.quantized_weight import Codes
from peagle.graphs.stream_weights import refer
from tests.graphs.checking import check
from tests.graphs.quantized_graphs import (
    BITS,
    COLUMNS,
    KINDS,
    ROWS,
    Small,
    in_blocks,
    linears,
    noise,
    ops,
    outputs_of,
    small_linears,
    tied,
    with_wide_inputs,
)
from tests.graphs.traced import CACHE


@settings(max_examples=12, deadline=None)
@given(kind=KINDS, block=st.sampled_from([16, 32, 64]), tokens=st.integers(1, 7), seed=st.integers(0, 99))
def test_a_linear_differs_from_its_dequantized_weight_by_how_its_input_is_rounded(
    kind: Codes, block: int, tokens: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("linear") / "model.onnx"
    small, x = small_linears(kind, block, "w"), noise(seed, tokens, COLUMNS)
    assert ops(small.lowered("ort", path)) == {"MatMulNBits": 1}
    (y,) = outputs_of(path, x=x)
    step = abs(x.reshape(tokens, -1, block)).max(axis=-1) / 127  # a block of the input has 255 codes
    most = np.repeat(step / 2, block, axis=1) @ abs(small.wide["w"]).T
    assert np.all(abs(y - x @ small.wide["w"].T) <= 1.01 * most + 1e-4)


@pytest.mark.parametrize("block", [16, 32, 64])
def test_four_bit_codes_are_exact_with_unquantized_input(block: int, tmp_path: Path) -> None:
    small, x = small_linears("uint4", block, "w"), noise(1, 5, COLUMNS)
    assert small.scales["w"].min() < 0 < small.scales["w"].max()
    model = small.lowered("ort", tmp_path / "model.onnx")
    ir.save(with_wide_inputs(model), tmp_path / "exact.onnx")
    (y,) = outputs_of(tmp_path / "exact.onnx", x=x)
    np.testing.assert_allclose(y, x @ small.wide["w"].T, atol=1e-4)


@pytest.mark.parametrize("kind", BITS)
def test_file_and_semantic_graph_share_the_codes(kind: Codes, tmp_path: Path) -> None:
    names, x = ("q", "k", "v"), noise(1, 5, COLUMNS)
    small, semantic = small_linears(kind, 32, *names), linears(*names)
    quantize(semantic, dict.fromkeys(names, in_blocks(kind, 32, ROWS, COLUMNS)))
    model = small.lowered("ort", tmp_path / "model.onnx")
    content = (tmp_path / "model.onnx.data").read_bytes()
    for name in names:
        codes = small.codes[name].astype(np.uint8)
        packed = codes if kind == "uint8" else codes[:, 0::2] | codes[:, 1::2] << 4
        run = small.runs[name]
        assert content[run.offset : run.offset + run.length] == packed.tobytes()
        assert run.length == ROWS * COLUMNS * BITS[kind] // 8
    codes = model.graph.initializers["q+k+v"]
    assert (list(codes.shape), codes.dtype) == ([3 * ROWS, 2, 4 * BITS[kind]], ir.DataType.UINT8)
    refer(semantic, small.runs, CACHE)
    LOWERINGS["std"].apply(semantic)
    ir.save(semantic, tmp_path / "std.onnx")
    check(tmp_path / "std.onnx")
    for name, y in zip(names, outputs_of(tmp_path / "std.onnx", x=x), strict=True):
        np.testing.assert_allclose(y, x @ small.wide[name].T, atol=1e-4)


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("kind", BITS)
def test_a_tied_matrix_is_stored_once_and_looked_up_in_its_codes(kind: Codes, block: int, tmp_path: Path) -> None:
    """Its rows equal the operand of the product, bit for bit."""
    how = replace(in_blocks(kind, block, ROWS, COLUMNS), gathered=True)
    small, x = Small(tied(), {"w": noise(3, ROWS, COLUMNS)}, {"w": how}), noise(1, 5, COLUMNS)
    model = small.lowered("ort", tmp_path / "model.onnx")
    assert ops(model) == {"MatMulNBits": 1, "GatherBlockQuantized": 1}
    written = sum(small.read(name).size * bits // 8 for name, bits in (("w", BITS[kind]), ("w_scale", 32)))
    assert (tmp_path / "model.onnx.data").stat().st_size < written + 4096
    ids = np.array([0, 7, ROWS - 1, 7, 5])
    rows = outputs_of(tmp_path / "model.onnx", x=x, ids=ids)[1]
    np.testing.assert_array_equal(rows, small.wide["w"][ids])
    ir.save(with_wide_inputs(model), tmp_path / "exact.onnx")
    np.testing.assert_allclose(outputs_of(tmp_path / "exact.onnx", x=x, ids=ids)[0], x @ small.wide["w"].T, atol=1e-4)
    check(tmp_path / "model.onnx")


def test_embedding_is_dequantized_by_default(tmp_path: Path) -> None:
    small = Small(tied(), {"w": noise(3, ROWS, COLUMNS)}, {"w": in_blocks("uint8", 32, ROWS, COLUMNS)})
    assert set(small.made.streams) == {"w.codes", "w_scale"}
    assert "w" in small.model.graph.initializers


@pytest.mark.parametrize("kind", BITS)
def test_packed_linears_match_single_runs_bit_for_bit(kind: Codes, tmp_path: Path) -> None:
    names, x = ("q", "k", "v"), noise(1, 5, COLUMNS)
    together = small_linears(kind, 32, *names)
    assert ops(together.lowered("ort", tmp_path / "all.onnx")) == {"MatMulNBits": 1, "Split": 1}
    for name, y in zip(names, outputs_of(tmp_path / "all.onnx", x=x), strict=True):
        alone = Small(
            linears(name), {name: noise(names.index(name), ROWS, COLUMNS)}, {name: in_blocks(kind, 32, ROWS, COLUMNS)}
        )
        alone.lowered("ort", tmp_path / f"{name}.onnx")
        np.testing.assert_array_equal(y, outputs_of(tmp_path / f"{name}.onnx", x=x)[0])


def test_linears_of_other_codes_or_blocks_are_not_packed_with_them(tmp_path: Path) -> None:
    how = {
        "a": in_blocks("uint4", 32, ROWS, COLUMNS), "b": in_blocks("uint4", 16, ROWS, COLUMNS),
        "c": in_blocks("uint8", 32, ROWS, COLUMNS),
    }  # fmt: skip
    small = Small(
        linears(
            *how,
        ),
        {name: noise(0, ROWS, COLUMNS) for name in how},
        how,
    )
    model = small.lowered("ort", tmp_path / "model.onnx")
    assert ops(model) == {"MatMulNBits": 3}
    assert {(each.weight, each.stored, each.computed, each.numbers) for each in products_of(model)} == {
        (name, f"int{bits}", "int8", ROWS * COLUMNS) for name, bits in (("a", 4), ("b", 4), ("c", 8))
    }


def _reason(model: ir.Model) -> str:
    """Return the reason why the kernel does not support its only weight."""
    node = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    return MatMulNBitsFusion().check(None, weight=node.outputs[0], codes=node.inputs[0]).reason  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "how", "reason"),
    [
        (64, QuantizedWeight("uint8"), "the scales are not one per block"),
        (64, QuantizedWeight("uint8", (ROWS,)), "the scales are not one per block"),
        (64, in_blocks("uint4", 8, ROWS, 64), "a power of two of at least 16"),
        (96, in_blocks("uint4", 48, ROWS, 96), "a power of two of at least 16"),
    ],
)
def test_unsupported_linear_is_kept_with_a_reason(
    columns: int, how: QuantizedWeight, reason: str, tmp_path: Path
) -> None:
    model = linears("w", columns=columns)
    quantize(model, {"w": how})
    assert reason in _reason(model)
    LOWERINGS["ort"].apply(model)
    assert ops(model)["MatMulNBits"] == 0
    (product,) = products_of(finish(model).model)
    assert (product.stored, product.computed) == (f"int{BITS[how.codes]}", "float32")


def test_codes_with_another_zero_point_are_kept() -> None:
    model = linears("w")
    quantize(model, {"w": in_blocks("uint8", 32, ROWS, COLUMNS)})
    fill = next(node for node in model.graph if node.op_type == "ConstantOfShape")
    fill.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.array([127], np.uint8)))
    assert "with a zero point in the middle" in _reason(model)


def test_shared_weight_is_not_packed() -> None:
    model = linears("w")
    quantize(model, {"w": in_blocks("uint8", 32, ROWS, COLUMNS)})
    wide = next(node for node in model.graph if node.op_type == "DequantizeLinear").outputs[0]
    model.graph.append(ir.node("ReduceSum", [wide]))
    model.graph.outputs.append(model.graph[-1].outputs[0])
    assert "a node other than a linear reads the weight as well" in _reason(model)
