"""A graph with a matmul for every storage and compute type."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

OUT, IN = 256, 512
BLOCK = 128
F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT
FP8, INT8, INT4 = TensorProto.FLOAT8E4M3FN, TensorProto.INT8, TensorProto.INT4
# By name of the product: what the graph stores, what it multiplies in, whether TensorRT unpacks it in a kernel before.
FORMS = {
    "wide": ("float16", "float16", False),
    "fp8": ("float8e4m3fn", "float8e4m3fn", False),
    "fp8_weight": ("float8e4m3fn", "float16", False),
    "int8": ("int8", "int8", False),
    "int8_weight": ("int8", "float16", False),
    "int8_blocks": ("int8", "float16", True),
    "int4": ("int4", "float16", False),
}


def products(folder: Path, forms: Iterable[str] = FORMS) -> Path:
    """``x [B, IN]`` times one weight of each form, with the weights outside of the file."""
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []
    for seed, form in enumerate(forms):
        made, tensors = _product(form, np.random.default_rng(seed))
        nodes += made
        weights += tensors
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", F16, ["B", IN])],
        [helper.make_tensor_value_info(f"{form}.y", F16, ["B", OUT]) for form in forms],
        weights,
    )
    path = folder / "model.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.save(model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=1024)
    return path


def _product(form: str, rng: np.random.Generator) -> tuple[list[NodeProto], list[TensorProto]]:
    values = (rng.standard_normal((OUT, IN)) * 0.02).astype(np.float32)
    kind, _, how = form.partition("_")
    nodes, tensors = [], []
    factor, weight = "x", f"{form}.weight"
    if kind == "wide":
        tensors.append(numpy_helper.from_array(values.astype(np.float16), weight))
    else:
        codes, scales, attributes = _coded(kind, how, values)
        tensors += [codes, scales]
        codes.name, scales.name = weight, f"{weight}_scale"
        nodes.append(_node("DequantizeLinear", [weight, scales.name], f"{form}.w", output_dtype=F16, **attributes))
    if kind in ("fp8", "int8") and not how:
        tensors.append(numpy_helper.from_array(np.array(0.02, np.float32), f"{form}.x_scale"))
        dtype = FP8 if kind == "fp8" else INT8
        nodes.append(_node("QuantizeLinear", ["x", f"{form}.x_scale"], f"{form}.codes", output_dtype=dtype))
        nodes.append(_node("DequantizeLinear", [f"{form}.codes", f"{form}.x_scale"], f"{form}.x", output_dtype=F16))
        factor = f"{form}.x"
    nodes.append(_node("Transpose", [weight if kind == "wide" else f"{form}.w"], f"{form}.turned", perm=[1, 0]))
    nodes.append(_node("MatMul", [factor, f"{form}.turned"], f"{form}.y"))
    return nodes, tensors


def _coded(kind: str, how: str, values: np.ndarray[Any, Any]) -> tuple[TensorProto, TensorProto, dict[str, int]]:
    if kind == "fp8":
        scale = np.array(np.abs(values).max() / 448, np.float32)
        codes = (values / scale).astype(ml_dtypes.float8_e4m3fn)
        return helper.make_tensor("", FP8, codes.shape, codes.tobytes(), raw=True), _scales(scale), {}
    largest = 127 if kind == "int8" else 7
    blocks = values.reshape(OUT, 1 if kind == "int8" and how != "blocks" else IN // BLOCK, -1)
    # TensorRT takes scales of INT4 in the type of the product only.
    scales = (np.abs(blocks).max(-1) / largest).astype(np.float16 if kind == "int4" else np.float32)
    whole = np.rint(blocks / scales[..., None].astype(np.float32)).clip(-largest, largest).reshape(OUT, IN)
    if kind == "int4":
        pairs = whole.astype(np.int8).reshape(-1, 2) & 15
        packed = (pairs[:, 0] | (pairs[:, 1] << 4)).astype(np.uint8)
        codes = helper.make_tensor("", INT4, [OUT, IN], packed.tobytes(), raw=True)
        return codes, _scales(scales), {"axis": 1, "block_size": BLOCK}
    tensor = numpy_helper.from_array(whole.astype(np.int8), "")
    if how == "blocks":
        return tensor, _scales(scales), {"axis": 1, "block_size": BLOCK}
    return tensor, _scales(scales[:, 0]), {"axis": 0}


def _scales(values: np.ndarray[Any, Any]) -> TensorProto:
    return numpy_helper.from_array(values, "")


def _node(op_type: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs, [output], output, **attributes)
