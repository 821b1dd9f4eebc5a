"""Key and value caches of E4M3 codes: a rewrite of a semantic graph, before it is lowered."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ...plugins.errors import BuildError
from ...plugins.spec import DOMAIN

CACHE_TYPE = ir.DataType.FLOAT8E4M3FN
_KINDS = {"k": (3, 1), "v": (4, 2)}  # the places of a cache among the inputs and outputs of CachedAttention


def narrow_caches(model: ir.Model, scales: Mapping[str, float]) -> None:
    """Rewrite in place: every cache becomes one of codes, times the scale by its name (``k_cache.0``).

    Raises ``BuildError`` unless there is a scale for every cache of the graph and nothing but attention reads one.
    """
    layers = [node for node in model.graph if node.domain == DOMAIN and node.op_type == "CachedAttention"]
    names = {str(value.name) for value in model.graph.inputs if "_cache." in str(value.name)}
    if names != scales.keys():
        raise BuildError(
            "the scales of the caches are not those that the graph needs",
            why=f"missing: {_listed(names - scales.keys())}; not in the graph: {_listed(scales.keys() - names)}",
            fix="calibrate this model again",
        )
    for node in layers:
        for kind, (place, out) in _KINDS.items():
            cache, written = node.inputs[place], node.outputs[out]
            origin = _origin(cache, place, out)
            if any(user not in layers for user, _ in (*cache.uses(), *written.uses())):
                raise BuildError(f"{origin.name} cannot hold codes", why="something beside attention reads it")
            cache.type = written.type = ir.TensorType(CACHE_TYPE)
            node.attributes[f"{kind}_scale"] = ir.AttrFloat32(f"{kind}_scale", scales[str(origin.name)])


def _origin(cache: ir.Value, place: int, out: int) -> ir.Value:
    """The input of the graph that a cache is, after however many layers wrote to it."""
    while (node := cache.producer()) is not None:
        if node.op_type != "CachedAttention" or node.outputs[out] is not cache:
            raise BuildError(f"{cache.name} cannot hold codes", why=f"it is made by {node.op_type}")
        cache = node.inputs[place]
    return cache


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:4]) + (" and more" if len(names) > 4 else "") if names else "none"
