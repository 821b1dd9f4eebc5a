"""Run the ONNX body of an op, as a one-node model, on ONNX Runtime."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from peagle.plugins.op_spec import ANY, DOMAIN, OPSET, VERSION, Operand, OpSpec
from peagle.plugins.ops import OPS
from tests.plugins.emulator import name_of

ONNX_TYPE = {
    name: getattr(onnx.TensorProto, name.upper())
    for name in ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float8e4m3fn")
} | {"float32": onnx.TensorProto.FLOAT}

FOREIGN = ("bfloat16", "float8e4m3fn")  # ONNX Runtime takes none of them from NumPy


def _shape(operand: Operand) -> tuple[str, ...]:
    """Any number of dims is two of them."""
    return ("P", "Q", *operand.dims[1:]) if operand.dims[:1] == (ANY,) else operand.dims


def one_node_model(
    name: str, dtypes: tuple[str | None, ...], attributes: tuple[tuple[str, Any], ...], *, readable: bool = False
) -> onnx.ModelProto:
    """A model of one node of op ``name`` with its body attached; None in ``dtypes`` is an absent optional input.

    ``readable`` outputs are float32 where NumPy could not have them from ONNX Runtime.
    """
    op = OPS[name]
    filled = op.check_attributes(dict(attributes))
    operands = [(operand, dtype) for operand, dtype in zip(op.inputs, dtypes, strict=False) if dtype is not None]
    function = onnx.parser.parse_function(op.body(filled, frozenset(operand.name for operand, _ in operands)))
    node = helper.make_node(
        op.name,
        ["" if dtype is None else operand.name for operand, dtype in _given(op, dtypes)],
        [output.name for output in op.outputs],
        domain=DOMAIN,
        overload=function.overload,
        **filled,
    )
    casts, inputs = [], []
    for operand, dtype in operands:
        feed, feed_dtype = operand.name, dtype
        if dtype in FOREIGN:
            feed, feed_dtype = f"{operand.name}_float32", "float32"
            casts.append(helper.make_node("Cast", [feed], [operand.name], to=ONNX_TYPE[dtype]))
        inputs.append(helper.make_tensor_value_info(feed, ONNX_TYPE[feed_dtype], _shape(operand)))
    outputs, output_casts = [], []
    for output, dtype in zip(op.outputs, op.infer_dtypes(dtypes), strict=True):
        label, type_name = output.name, dtype
        if readable and dtype in FOREIGN:
            label, type_name = f"{output.name}_float32", "float32"
            output_casts.append(helper.make_node("Cast", [output.name], [label], to=onnx.TensorProto.FLOAT))
        outputs.append(helper.make_tensor_value_info(label, ONNX_TYPE[type_name], _shape(output)))
    model = helper.make_model(
        helper.make_graph([*casts, node, *output_casts], name, inputs, outputs),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)],
        functions=[function],
        ir_version=11,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _given(op: OpSpec, dtypes: tuple[str | None, ...]) -> list[tuple[Operand, str | None]]:
    """The inputs up to the last that is there."""
    last = max(i for i, dtype in enumerate(dtypes) if dtype is not None)
    return list(zip(op.inputs, dtypes[: last + 1], strict=False))


@functools.cache
def session(name: str, dtypes: tuple[str | None, ...], attributes: tuple[tuple[str, Any], ...]) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # TensorScatter warns on every run that did not bind its buffer in place
    model = one_node_model(name, dtypes, attributes, readable=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(name: str, inputs: list[Any], **attributes: Any) -> list[Any]:
    """The outputs of the op's ONNX body. They must have the shapes and dtypes that the spec promises."""
    op = OPS[name]
    dtypes = tuple(None if x is None else name_of(x.dtype) for x in inputs)
    instance = session(name, dtypes, tuple(sorted(attributes.items())))
    feeds = [x.astype(np.float32) if name_of(x.dtype) in FOREIGN else x for x in inputs if x is not None]
    outputs = instance.run(None, {i.name: x for i, x in zip(instance.get_inputs(), feeds, strict=True)})
    promised = [np.dtype(name.replace("float8", "float8_")) for name in op.infer_dtypes(dtypes)]
    outputs = [
        x.astype(wanted) if wanted.name.startswith(("float8", "bfloat16")) else x
        for x, wanted in zip(outputs, promised, strict=True)
    ]
    shapes = [None if x is None else x.shape for x in inputs]
    assert [x.shape for x in outputs] == op.infer_shapes(shapes, op.check_attributes(attributes))
    assert [x.dtype for x in outputs] == promised
    return outputs
