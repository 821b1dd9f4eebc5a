"""Packed unquantized matrices for this project's kernels; the results stay the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ...plugins.op_spec import DOMAIN, VERSION
from ...plugins.ops.wide_linear.packed_matrix import pack_matrix, packed_shape
from .packed_nodes import put_in_place, whole_tiles
from .qdq_nodes import streamed
from .rewrite_rules import EmbeddingRule, LinearRule, Site

Shape = tuple[int, ...]


def pack_wide(model: ir.Model, tables: Collection[str] = ()) -> Mapping[str, Shape]:
    """Pack, in place, the float32 matrices that a semantic graph multiplies with.

    Row lookups in one of them read the packed form as well, so that it is stored once; ``tables`` are packed even if
    they are only used for lookups. A matrix with other readers stays unchanged. Returns the shape ``[N, K]`` of every
    packed matrix by its name, which does not change.
    """
    groups: dict[ir.Value, list[Site]] = {}
    for node in tuple(model.graph):
        for site in (*LinearRule().sites(node), *EmbeddingRule().sites(node)):
            if not site.fault and _is_matrix(site.weight):
                groups.setdefault(site.weight, []).append(site)
    packed: dict[str, Shape] = {}
    for value, sites in groups.items():
        is_read_otherwise = {node for node, _ in value.uses()} != {site.reader for site in sites}
        is_multiplied = any(not site.gathers for site in sites)
        if not is_read_otherwise and (is_multiplied or value.name in tables):
            packed[str(value.name)] = tuple(int(dim) for dim in value.const_value.shape)
            _pack(model.graph, value, sites)
    if packed:
        model.opset_imports.setdefault(DOMAIN, VERSION)
    return packed


def packed_tiles(runs: Iterable[Any], columns: int) -> Iterator[Any]:
    """Pack runs of rows of a matrix as they come."""
    for rows in whole_tiles(run.reshape(-1, columns).astype(np.float32, copy=False) for run in runs):
        yield pack_matrix(rows)


def _is_matrix(value: ir.Value) -> bool:
    tensor: Any = value.const_value
    return tensor.dtype == ir.DataType.FLOAT and len(tensor.shape) == 2


def _pack(graph: ir.Graph, value: ir.Value, sites: list[Site]) -> None:
    name = str(value.name)
    rows, columns = (int(dim) for dim in value.const_value.shape)
    del graph.initializers[name]
    matrix = streamed(graph, name, packed_shape(rows, columns), ir.DataType.FLOAT)

    def replacement(site: Site) -> ir.Node:
        op, x = ("WideEmbedding", site.node.inputs[1]) if site.gathers else ("WideLinear", site.node.inputs[0])
        return ir.node(op, [x, matrix], {"rows": rows}, domain=DOMAIN)

    put_in_place(graph, sites, replacement)
