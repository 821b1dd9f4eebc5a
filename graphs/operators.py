"""Semantic ops as torch operators, so that ``torch.export`` keeps each as one node, and as ONNX schemas.

Every ``OpSpec`` becomes ``torch.ops.peagle.<name>``: its eager form is the spec's NumPy reference, its shape rule comes
from the spec, and its ONNX form is one node of the ``peagle`` domain. Two further operators keep a standard ONNX op
whole during tracing: ``rms_norm`` (RMSNormalization-23) and ``rope`` (RotaryEmbedding-23 with a table).

The name of an op must be unique across all domains: ``onnx.reference`` cannot be imported if an op of this project has
the name of a standard op.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import onnx
import torch
from onnx.defs import OpSchema
from torch import Tensor

from ..plugins.number_types import BY_NAME
from ..plugins.op_spec import DOMAIN, OPSET, SELECTION, VERSION, Operand, OpSpec
from ..plugins.ops import OPS

_SCHEMA_TYPE = {float: "float", int: "int", str: "str"}  # in the schema of a torch operator
_ATTRIBUTE = {float: OpSchema.AttrType.FLOAT, int: OpSchema.AttrType.INT, str: OpSchema.AttrType.STRING}


def torch_name(op: str) -> str:
    """Return the name of an op as a torch operator: ``AcceptPrefix`` becomes ``accept_prefix``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op).lower()


def _signature(spec: OpSpec) -> str:
    inputs = [f"Tensor{'?' if o.optional else ''} {o.name}" for o in spec.inputs]
    attributes = [f"{_SCHEMA_TYPE[a.kind]} {a.name}" for a in spec.attributes]
    return f"{torch_name(spec.name)}({', '.join(inputs + attributes)}) -> ({', '.join(['Tensor'] * len(spec.outputs))})"


def _as_returned(outputs: Iterable[Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Unwrap a single result: its schema returns the tensor, not a tuple."""
    first, *others = outputs
    return (first, *others) if others else first


def _eager(spec: OpSpec) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    count = len(spec.inputs)

    def run(*args: Any) -> Tensor | tuple[Tensor, ...]:
        arrays = [None if t is None else t.detach().cpu().numpy() for t in args[:count]]
        attributes = dict(zip((a.name for a in spec.attributes), args[count:], strict=True))
        return _as_returned(torch.from_numpy(np.ascontiguousarray(a)) for a in spec.reference(*arrays, **attributes))

    return run


def _fake(spec: OpSpec) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    count = len(spec.inputs)

    def run(*args: Any) -> Tensor | tuple[Tensor, ...]:
        tensors = args[:count]
        attributes = dict(zip((a.name for a in spec.attributes), args[count:], strict=True))
        shapes = spec.infer_shapes([None if t is None else t.shape for t in tensors], attributes)
        by_name = {o.name: t for o, t in zip(spec.inputs, tensors, strict=True)}
        return _as_returned(
            tensors[0].new_empty(
                shape, dtype=by_name[o.same_as].dtype if o.same_as else getattr(torch, BY_NAME[o.dtypes[0]].numpy)
            )
            for o, shape in zip(spec.outputs, shapes, strict=True)
        )

    return run


def _translation(spec: OpSpec) -> Callable[..., Any]:
    """Return the ONNX form: one node. The exporter uses the signature to distinguish inputs from attributes."""
    import onnxscript

    opset = onnxscript.values.Opset(DOMAIN, VERSION)
    inputs = [inspect.Parameter(o.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for o in spec.inputs]
    attributes = [
        inspect.Parameter(a.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=a.kind) for a in spec.attributes
    ]
    signature = inspect.Signature([*inputs, *attributes])

    def translate(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs).arguments
        operands = [bound[o.name] for o in spec.inputs]
        while operands and operands[-1] is None:
            operands.pop()
        return getattr(opset, spec.name)(*operands, **{a.name: bound[a.name] for a in spec.attributes})

    translate.__name__ = torch_name(spec.name)
    translate.__signature__ = signature  # type: ignore[attr-defined]
    translate.__annotations__ = {a.name: a.kind for a in spec.attributes}
    return translate


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def _rope(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    c, s = cos[positions][:, None], sin[positions][:, None]
    return torch.cat([low * c - high * s, high * c + low * s], -1)


def _standard_translations() -> dict[Any, Callable[..., Any]]:
    import onnxscript

    op, peagle_ops, aten = onnxscript.values.Opset("", OPSET), torch.ops.peagle, torch.ops.aten

    def rms_norm(x, weight, eps: float):  # type: ignore[no-untyped-def]
        return op.RMSNormalization(x, weight, axis=-1, epsilon=eps)

    def rope(x, cos, sin, positions):  # type: ignore[no-untyped-def]
        return op.RotaryEmbedding(x, cos, sin, positions)

    def softmax(x, dim: int, dtype: int = -1):  # type: ignore[no-untyped-def]
        # onnxscript's own casts the result: routers, which need float32, would choose among rounded probabilities.
        return op.Softmax(x if dtype == -1 else op.Cast(x, to=dtype), axis=dim)

    def linear(x, weight, bias=None):  # type: ignore[no-untyped-def]
        # onnxscript's own is a Gemm for two dimensions (routers), which no rule here matches.
        product = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
        return product if bias is None else op.Add(product, bias)

    return {
        peagle_ops.rms_norm.default: rms_norm,
        peagle_ops.rope.default: rope,
        aten.softmax.int: softmax,
        aten.linear.default: linear,
    }


def register() -> torch.library.Library:
    """Define the missing operators in this process; the library is kept, because it must outlive its uses."""
    library = _library()
    for spec in OPS.values():
        name = torch_name(spec.name)
        if not hasattr(torch.ops.peagle, name):
            library.define(_signature(spec))
            library.impl(name, _eager(spec), "CPU")
            torch.library.register_fake(f"{DOMAIN}::{name}", _fake(spec), lib=library)
    return library


@cache
def _library() -> torch.library.Library:
    library = torch.library.Library(DOMAIN, "DEF")
    library.define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor")
    library.define("rope(Tensor x, Tensor cos, Tensor sin, Tensor positions) -> Tensor")
    for name, function in (("rms_norm", _rms_norm), ("rope", _rope)):
        library.impl(name, function, "CPU")
        torch.library.register_fake(f"{DOMAIN}::{name}", lambda x, *_: torch.empty_like(x), lib=library)
    return library


def translations() -> dict[Any, Callable[..., Any]]:
    """Return the ``custom_translation_table`` for ``torch.onnx.export``."""
    register()
    register_schemas()
    peagle_ops = torch.ops.peagle
    table: dict[Any, Callable[..., Any]] = {
        getattr(peagle_ops, torch_name(s.name)).default: _translation(s) for s in OPS.values()
    }
    return table | _standard_translations()


def _parameter(operand: Operand) -> OpSchema.FormalParameter:
    option = OpSchema.FormalParameterOption.Optional if operand.optional else OpSchema.FormalParameterOption.Single
    return OpSchema.FormalParameter(
        operand.name, f"T_{operand.same_as or operand.name}", operand.doc, param_option=option
    )


def _tensor(dtype: str) -> str:
    return f"tensor({'float' if dtype == 'float32' else dtype})"


def schema(spec: OpSpec) -> OpSchema:
    """Return the ``OpSchema`` of a spec; operands tied by ``same_as`` share a type variable."""
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
            *[OpSchema.Attribute(n, OpSchema.AttrType.STRING, "for TensorRT", required=False) for n in SELECTION],
        ],
    )


def register_schemas() -> None:
    """Register this project's ops with ``onnx`` in this process (checker, shape inference, onnxscript)."""
    for spec in OPS.values():
        if not onnx.defs.has(spec.name, DOMAIN):
            onnx.defs.register_schema(schema(spec))
