"""Models written without the onnx package equal those that it writes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from peagle.plugins.cpu.one_node_model import one_node_model
from peagle.plugins.op_spec import DOMAIN, OPSET


def test_model_is_parsed_as_intended() -> None:
    constants = {"c": np.array([[1, -2, 3]], np.int32), "h": np.zeros((2, 0, 300), np.float16)}
    attributes = {"text": "wörd", "whole": -41, "large": 2**40, "number": 2.5}
    inputs, outputs = {"x": "float32", "a": None, **constants, "b": "bool"}, {"y": "int64", "unwanted": None}
    model = onnx.load_model_from_string(one_node_model("SelfTest", inputs, outputs, attributes))
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": OPSET, DOMAIN: 1}
    (node,) = model.graph.node
    assert (node.op_type, node.domain, list(node.input), list(node.output)) == (
        "SelfTest",
        DOMAIN,
        ["x", "", "c", "h", "b"],
        ["y", ""],
    )
    read = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert read == attributes | {"text": "wörd".encode()}
    for tensor in model.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), constants[tensor.name])
    assert [(each.name, each.type.tensor_type.elem_type) for each in model.graph.input] == [("x", 1), ("b", 9)]
    assert [(each.name, each.type.tensor_type.elem_type) for each in model.graph.output] == [("y", 7)]
