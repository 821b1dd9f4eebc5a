"""Key and value caches of E4M3 codes, or of another low-precision type: a rewrite of a semantic graph before lowering.

Alternatively, the rewrite simulates the rounding of such caches, for a runtime whose attention does not read codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from ...plugins.errors import BuildError
from ...plugins.graph_contract import cache_width, is_cache
from ...plugins.number_types import BY_NAME
from ...plugins.op_spec import DOMAIN
from ..node_tape import Nodes
from .qdq_nodes import rounded
from .quantized_weight import Rounding

CACHE_TYPE = ir.DataType.FLOAT8E4M3FN
_KINDS = {"k": (3, 1), "v": (4, 2)}  # indices of a cache among the inputs and outputs of CachedAttention
_NEW = {"k": 1, "v": 2}  # and of the new keys and values
_ROUNDS_AS = {"float16": "saturates", "int8": "scaled"}  # the attribute of CachedAttention for a type of caches
_WIDE = "use --kv-cache-dtype fp32"


def quantize_caches(model: ir.Model, scales: Mapping[str, float]) -> None:
    """Rewrite in place: every cache stores codes, with the scale under its name (``k_cache.0``).

    Raises ``BuildError`` unless there is a scale for every cache of the graph, and only attention reads caches.
    """
    layers = _layers(model, scales)
    for node in layers:
        for kind, (index, out) in _KINDS.items():
            cache, output = node.inputs[index], node.outputs[out]
            origin = _origin(cache, index, out)
            _require_unread(origin, (cache, output), layers, "omit --kv-cache-dtype")
            cache.type = output.type = ir.TensorType(CACHE_TYPE)
            node.attributes[f"{kind}_scale"] = ir.AttrFloat32(f"{kind}_scale", scales[str(origin.name)])


def lower_cache_precision(model: ir.Model, dtype: str) -> None:
    """Rewrite in place: every cache has the type ``dtype``, to which attention rounds new values.

    Finite values beyond the range of float16 become its largest. Raises ``BuildError`` if anything else reads a cache.
    """
    kind = ir.TensorType(ir.DataType(BY_NAME[dtype].onnx))
    layers = _attention(model)
    for node in layers:
        for index, out in _KINDS.values():
            cache, output = node.inputs[index], node.outputs[out]
            _require_unread(_origin(cache, index, out, _WIDE), (cache, output), layers, _WIDE)
            for each in (cache, output):  # the cache may be the previous layer's
                if each.shape is not None and each.dtype != kind.dtype:
                    width = cache_width(int(each.shape[-1]), dtype)
                    each.shape = ir.Shape([*each.shape[:-1], width])
                each.type = kind
        name = _ROUNDS_AS[dtype]
        node.attributes[name] = ir.AttrInt64(name, 1)


def round_caches(model: ir.Model, scales: Mapping[str, float]) -> None:
    """Rewrite in place: new keys and values are rounded to what codes can represent; caches keep their type.

    Attention then gives the same results as with caches of codes. Raises ``BuildError`` as in ``quantize_caches``.
    """
    for node in _layers(model, scales):
        for kind, (index, out) in _KINDS.items():
            origin, new = _origin(node.inputs[index], index, out), node.inputs[_NEW[kind]]
            op = Nodes()
            copy = op.Identity(new)  # with its own name, since keys can also be values
            copy.name, copy.shape, copy.type = f"{node.outputs[out].name}.new", new.shape, new.type
            value = rounded(op, model.graph, copy, Rounding("float8_e4m3fn", scales[str(origin.name)]))
            model.graph.insert_before(node, op.nodes)
            node.replace_input_with(_NEW[kind], value)


def _layers(model: ir.Model, scales: Mapping[str, float]) -> list[ir.Node]:
    """Return the nodes that write caches. Raises ``BuildError`` unless there is a scale for every cache."""
    names = {str(value.name) for value in model.graph.inputs if is_cache(str(value.name))}
    if names != scales.keys():
        raise BuildError(
            "the KV-cache scales do not match the caches of the graph",
            why=f"missing: {_some(names - scales.keys())}; not in the graph: {_some(scales.keys() - names)}",
            fix="calibrate this model again",
        )
    return _attention(model)


def _attention(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain == DOMAIN and node.op_type == "CachedAttention"]


def _require_unread(origin: ir.Value, versions: Iterable[ir.Value], layers: Collection[ir.Node], fix: str) -> None:
    """Raise ``BuildError`` with ``fix`` if anything but attention reads a version of a cache, other than its sizes."""
    readers = {user for version in versions for user, _ in version.uses()} - {*layers}
    if any(user.op_type != "Shape" or user.attributes.get_int("end", 4) not in (1, 2, 3) for user in readers):
        raise BuildError(
            f"{origin.name} cannot be quantized",
            why="a node other than attention reads it",
            fix=fix,
        )


def _origin(cache: ir.Value, index: int, out: int, fix: str = "omit --kv-cache-dtype") -> ir.Value:
    """Return the graph input of a cache, through the layers that write to it; ``fix`` is for those of anything else."""
    while (node := cache.producer()) is not None:
        if node.op_type != "CachedAttention" or node.outputs[out] is not cache:
            raise BuildError(
                f"{cache.name} cannot be quantized",
                why=f"the cache is the output of {node.op_type}",
                fix=fix,
            )
        cache = node.inputs[index]
    return cache


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:4]) + " and more" * (len(names) > 4) or "none"
