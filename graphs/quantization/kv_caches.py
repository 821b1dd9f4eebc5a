"""Key and value caches of E4M3 codes, or of another narrow type: a rewrite of a semantic graph, before it is lowered.

Or what such caches do to the numbers in them, for a runtime whose attention reads no codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from ...plugins.errors import BuildError
from ...plugins.graph_contract import cache_width
from ...plugins.number_types import BY_NAME
from ...plugins.op_spec import DOMAIN
from ..node_tape import Nodes
from .qdq_nodes import rounded
from .quantized_weight import Rounding

CACHE_TYPE = ir.DataType.FLOAT8E4M3FN
_KINDS = {"k": (3, 1), "v": (4, 2)}  # the places of a cache among the inputs and outputs of CachedAttention
_NEW = {"k": 1, "v": 2}  # and of what is written to it


def quantize_caches(model: ir.Model, scales: Mapping[str, float]) -> None:
    """Rewrite in place: every cache becomes one of codes, times the scale by its name (``k_cache.0``).

    Raises ``BuildError`` unless there is a scale for every cache of the graph and nothing but attention reads one.
    """
    layers = _layers(model, scales)
    for node in layers:
        for kind, (place, out) in _KINDS.items():
            cache, output = node.inputs[place], node.outputs[out]
            origin = _origin(cache, place, out)
            _require_unread(origin, (cache, output), layers)
            cache.type = output.type = ir.TensorType(CACHE_TYPE)
            node.attributes[f"{kind}_scale"] = ir.AttrFloat32(f"{kind}_scale", scales[str(origin.name)])


def narrow_caches(model: ir.Model, dtype: str) -> None:
    """Rewrite in place: every cache is kept in ``dtype``, to which attention rounds what it writes.

    Raises ``BuildError`` where something else reads one.
    """
    kind = ir.TensorType(ir.DataType(BY_NAME[dtype].onnx))
    layers = _attention(model)
    for node in layers:
        for place, out in _KINDS.values():
            cache, output = node.inputs[place], node.outputs[out]
            _require_unread(_origin(cache, place, out), (cache, output), layers)
            for each in (cache, output):  # which may be one of the layer before
                if each.shape is not None and each.dtype != kind.dtype:
                    width = cache_width(int(each.shape[-1]), dtype)
                    each.shape = ir.Shape([*each.shape[:-1], width])
                each.type = kind
        if dtype == "int8":
            node.attributes["scaled"] = ir.AttrInt64("scaled", 1)


def round_caches(model: ir.Model, scales: Mapping[str, float]) -> None:
    """Rewrite in place: new keys and values become what their codes would stand for, and caches stay as wide as before.

    Attention computes what it does over caches of codes. Raises ``BuildError`` as ``quantize_caches`` does for scales.
    """
    for node in _layers(model, scales):
        for kind, (place, out) in _KINDS.items():
            origin, new = _origin(node.inputs[place], place, out), node.inputs[_NEW[kind]]
            op = Nodes()
            copy = op.Identity(new)  # of a name of its own: keys can be values too
            copy.name, copy.shape, copy.type = f"{node.outputs[out].name}.new", new.shape, new.type
            value = rounded(op, model.graph, copy, Rounding("float8_e4m3fn", scales[str(origin.name)]))
            model.graph.insert_before(node, op.nodes)
            node.replace_input_with(_NEW[kind], value)


def _layers(model: ir.Model, scales: Mapping[str, float]) -> list[ir.Node]:
    """The nodes that write caches. Raises ``BuildError`` unless there is a scale for every cache of the graph."""
    names = {str(value.name) for value in model.graph.inputs if "_cache." in str(value.name)}
    if names != scales.keys():
        raise BuildError(
            "the scales of the caches are not those that the graph needs",
            why=f"missing: {_some(names - scales.keys())}; not in the graph: {_some(scales.keys() - names)}",
            fix="calibrate this model again",
        )
    return _attention(model)


def _attention(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain == DOMAIN and node.op_type == "CachedAttention"]


def _require_unread(origin: ir.Value, versions: Iterable[ir.Value], layers: Collection[ir.Node]) -> None:
    """Raise ``BuildError`` where something beside attention reads a version of a cache, and not just its sizes."""
    readers = {user for version in versions for user, _ in version.uses()} - {*layers}
    if any(user.op_type != "Shape" or user.attributes.get_int("end", 4) not in (1, 2, 3) for user in readers):
        raise BuildError(f"{origin.name} cannot hold codes", why="something beside attention reads it")


def _origin(cache: ir.Value, place: int, out: int) -> ir.Value:
    """The input of the graph that a cache is, after however many layers wrote to it."""
    while (node := cache.producer()) is not None:
        if node.op_type != "CachedAttention" or node.outputs[out] is not cache:
            raise BuildError(f"{cache.name} cannot hold codes", why=f"it is made by {node.op_type}")
        cache = node.inputs[place]
    return cache


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:4]) + " and more" * (len(names) > 4) or "none"
