"""ONNX operator schemas of the ``peagle`` domain, made from the op specs.

A name must be unique across every domain: ``onnx.reference`` refuses to import when an op of ours is called like a
standard one.
"""

from __future__ import annotations

from functools import cache

import onnx
from onnx.defs import OpSchema

from ..plugins.ops import OPS
from ..plugins.spec import DOMAIN, VERSION, Operand, OpSpec

_PLUGIN = ("plugin_namespace", "plugin_version")
_ATTRIBUTE = {float: OpSchema.AttrType.FLOAT, int: OpSchema.AttrType.INT, str: OpSchema.AttrType.STRING}


def _parameter(operand: Operand) -> OpSchema.FormalParameter:
    option = OpSchema.FormalParameterOption.Optional if operand.optional else OpSchema.FormalParameterOption.Single
    return OpSchema.FormalParameter(
        operand.name, f"T_{operand.same_as or operand.name}", operand.doc, param_option=option
    )


def _tensor(dtype: str) -> str:
    return f"tensor({'float' if dtype == 'float32' else dtype})"


def schema(spec: OpSpec) -> OpSchema:
    """The ``OpSchema`` of one spec; operands tied by ``same_as`` share a type variable."""
    variables = {
        f"T_{o.name}": [_tensor(dtype) for dtype in o.dtypes]
        for o in (*spec.inputs, *spec.outputs)
        if o.same_as is None
    }
    return OpSchema(
        spec.name,
        DOMAIN,
        VERSION,
        spec.doc,
        inputs=[_parameter(o) for o in spec.inputs],
        outputs=[_parameter(o) for o in spec.outputs],
        type_constraints=[(name, types, "") for name, types in variables.items()],
        attributes=[
            *[OpSchema.Attribute(a.name, _ATTRIBUTE[a.kind], a.doc, required=False) for a in spec.attributes],
            *[OpSchema.Attribute(n, OpSchema.AttrType.STRING, "for TensorRT", required=False) for n in _PLUGIN],
        ],
    )


@cache
def register() -> None:
    """Make every op of ours known to ``onnx`` in this process (checker, shape inference, onnxscript)."""
    for spec in OPS.values():
        if not onnx.defs.has(spec.name, DOMAIN):
            onnx.defs.register_schema(schema(spec))
