"""Lowering ``std``: every op of this project carries its reference body as a model-local function. Runs everywhere."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from ...plugins.op_spec import DOMAIN
from ...plugins.ops import OPS


def apply(model: ir.Model) -> None:
    """Attach the function bodies for all remaining nodes of the ``peagle`` domain."""
    for node in model.graph.all_nodes():
        if node.domain != DOMAIN:
            continue
        spec = OPS[node.op_type]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        present = frozenset(o.name for o, value in zip(spec.inputs, node.inputs, strict=False) if value is not None)
        text = spec.body(spec.check_attributes(attributes), present)
        function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
        node.overload = function.overload
        model.functions[function.identifier()] = function
