"""A row of a quantized product does not depend on the number of rows, which lossless speculation relies on."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from peagle.compiler.precision.quantization_schemes import scheme
from peagle.graphs.lowering import LOWERINGS

WIDTH, ROWS_OUT, MAX = 512, 96, 9


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_row_is_independent_of_other_rows(precision: str, threads: int) -> None:
    codes = scheme(precision, LOWERINGS["ort"])
    assert isinstance(codes.block, int)
    bits = {"uint8": 8, "uint4": 4}[codes.codes]
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (ROWS_OUT, WIDTH // codes.block, codes.block * bits // 8), np.uint8)
    scales = rng.random(ROWS_OUT * WIDTH // codes.block, np.float32) / 100
    node = helper.make_node(
        "MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft", K=WIDTH, N=ROWS_OUT, bits=bits,
        block_size=codes.block, accuracy_level=4,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", ROWS_OUT])],
        [helper.make_tensor("codes", TensorProto.UINT8, packed.shape, packed.tobytes(), raw=True),
         helper.make_tensor("scales", TensorProto.FLOAT, scales.shape, scales.tobytes(), raw=True)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, options)
    rows = rng.standard_normal((MAX, WIDTH), np.float32)
    pairs = np.concatenate([session.run(None, {"x": rows[at : at + 2]})[0] for at in range(0, MAX - 1, 2)])
    for count in range(2, MAX):
        (some,) = session.run(None, {"x": rows[:count]})
        np.testing.assert_array_equal(some, pairs[:count])
