"""Packed unquantized matrices for this project's kernels; the results stay the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...plugins.op_spec import DOMAIN, VERSION
from ...plugins.ops.quantized_linear.packed_weights import TILE
from ...plugins.ops.wide_linear.packed_matrix import pack_matrix, packed_shape
from .packed_experts import STACKS, expert_terms, is_experts, replace_experts
from .packed_nodes import put_in_place
from .qdq_nodes import streamed
from .rewrite_rules import EmbeddingRule, LinearRule, Site, inner_codes, is_weight

Shape = tuple[int, ...]


def pack_wide(model: ir.Model, tables: Collection[str] = ()) -> Mapping[str, Shape]:
    """Pack, in place, the float32 matrices that a semantic graph multiplies with, and its stacks of experts.

    Row lookups in one of them read the packed form as well, so that it is stored once; ``tables`` are packed even if
    they are only used for lookups. A matrix with other readers stays unchanged. Returns the shape ``[N, K]`` of every
    packed matrix, or ``[E, N, K]`` of a stack, by its name, which does not change.
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
    for node in tuple(model.graph):
        if is_experts(node) and _is_wide(node):
            packed |= _pack_experts(model.graph, node)
    if packed:
        model.opset_imports.setdefault(DOMAIN, VERSION)
    return packed


def packed_tiles(runs: Iterable[Any], shape: Sequence[int]) -> Iterator[Any]:
    """Pack runs of rows of a matrix [N, K], or of a stack [E, N, K], as they arrive."""
    rows, columns = shape[-2:]
    rest = np.empty((0, columns), np.float32)
    done = 0  # rows of the current matrix
    for run in runs:
        rest = np.concatenate([rest, run.reshape(-1, columns).astype(np.float32, copy=False)])
        while count := _packable_rows(len(rest), rows - done):
            yield pack_matrix(rest[:count])
            rest, done = rest[count:], (done + count) % rows


def _packable_rows(there: int, left: int) -> int:
    """Return how many rows are packed next: whole tiles, or those up to the end of the matrix."""
    return left if there >= left else there // TILE * TILE


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


def _is_wide(node: ir.Node) -> bool:
    """Return True if both stacks of a ``SparseExperts`` are float32, and nothing else reads them."""
    stacks = [node.inputs[index] for index in STACKS.values()]
    return not inner_codes(node) and all(
        is_weight(value) and value.const_value.dtype == ir.DataType.FLOAT and len(value.uses()) == 1
        for value in stacks
        if value is not None
    )


def _pack_experts(graph: ir.Graph, node: ir.Node) -> dict[str, Shape]:
    packed: dict[str, Shape] = {}
    stacks = []
    for index in STACKS.values():
        value: Any = node.inputs[index]
        name, shape = str(value.name), tuple(int(dim) for dim in value.const_value.shape)
        del graph.initializers[name]
        experts, *of_one = shape
        stacks.append(streamed(graph, name, (experts, *packed_shape(*of_one)), ir.DataType.FLOAT))
        packed[name] = shape
    _, (_, hidden, inner) = packed.values()
    attributes: dict[str, Any] = {"inner": inner, "hidden": hidden, **expert_terms(node)}
    replace_experts(graph, node, "WideExperts", stacks, attributes)
    return packed
