"""Attention for TensorRT: two ``TensorScatter`` into the network's caches, then ``Attention`` with a shared mask.

A pass reads only as many cache positions as the length of its input ``positions``, not all T: the host chooses the
smallest of a few lengths that covers every busy row (``engines.backends.tensorrt.reach``), so the cost follows the
context length. Layers with a sliding window read only the positions in it (``cache_reads.py``).

If the attention kernel copies the cache positions that it reads, the copy takes the window's keys and values from the
window, instead of reading them back, and appends them to the earlier ones. It then does not wait for the cache writes,
so that TensorRT-RTX joins them: one kernel writes the caches of all layers.

An op of this project writes caches of codes, because TensorRT's cache update does not support FP8. The codes are
dequantized before the attention, which does not support FP8 either.
"""

from __future__ import annotations

import onnx_ir as ir

from ....plugins.errors import BuildError
from ....plugins.graph_contract import POSITIONS, SKIPPED, TENSORS, is_cache
from ....plugins.op_spec import DOMAIN
from ...node_tape import Nodes
from ..trees import skipped_bits
from .cache_reads import CacheReads, cache_reads
from .decomposed_attention import decompose_attention
from .shared_inputs import quantize_separately
from .sink_keys import ADDED, sink_key, sink_mask, sink_queries, sink_value

_WIDEST_HEAD = 256  # limit of the fused kernel of TensorRT-RTX 1.7

# Finite, to avoid tiles with only infinities; far below any score of a written position.
_MASKED = {ir.DataType.FLOAT16: -65504.0}
_MASKED_WIDE = -1e30

_CachedReads = dict[tuple[object, ...], tuple[CacheReads, ir.Value]]  # and the mask
_Tree = tuple[ir.Value, ir.Value]  # skipped i64 [B,S], and ancestors bool [B,S,S]


def fused_size(head_dim: int, *, has_sinks: bool, has_softcap: bool) -> int:
    """Return the size of a head in fused attention; 0 if TensorRT does not fuse this attention."""
    size = head_dim + ADDED * has_sinks
    return 0 if has_softcap or size > _WIDEST_HEAD else size


def apply(model: ir.Model, *, copies_caches: bool) -> None:
    """Rewrite every attention layer in place; layers that read the same positions share them and their mask.

    With ``copies_caches``, the layout of fused attention differs from that of the caches, so the positions that are
    read are copied, and the keys of the window are last.
    """
    layers = [node for node in model.graph if node.domain == DOMAIN and node.op_type == "CachedAttention"]
    if not layers:
        return
    positions, cached_reads = _positions(model.graph), _CachedReads()
    for node in layers:
        _rewrite(model.graph, node, positions, cached_reads, copies_caches)


def _positions(graph: ir.Graph) -> ir.Value:
    """Create the input with the positions to read, before the caches."""
    kind = TENSORS[POSITIONS]
    value = ir.Value(name=POSITIONS, shape=ir.Shape(kind.dims), type=ir.TensorType(ir.DataType.INT64))
    at = next((index for index, each in enumerate(graph.inputs) if is_cache(each.name or "")), len(graph.inputs))
    graph.inputs.insert(at, value)
    return value


def _rewrite(
    graph: ir.Graph, node: ir.Node, positions: ir.Value, cached_reads: _CachedReads, copies_caches: bool
) -> None:
    q, k, v, k_cache, v_cache, start, *rest = node.inputs
    window, scale, softcap = (node.attributes[name].value for name in ("window", "scale", "softcap"))
    op, cache = Nodes(), k_cache.shape
    sinks, ancestors = (*rest, None, None)[:2]
    tree = None if ancestors is None else (_skipped(graph), ancestors)
    is_plain = not fused_size(cache[3], has_sinks=sinks is not None, has_softcap=bool(softcap))
    as_keys = sinks is not None and not is_plain
    has_codes = k_cache.dtype == ir.DataType.FLOAT8E4M3FN
    window_last = copies_caches and not is_plain and not has_codes
    key = (start, str(q.shape[2]), q.dtype, window, as_keys, window_last, cache[1] if window else 0)
    if key not in cached_reads:
        read = cache_reads(op, q, start, positions, window, cache, window_last=window_last)
        mask = additive_mask(op, q, start, read, op.Shape(positions), window, tree, window_last=window_last)
        cached_reads[key] = read, sink_mask(op, mask, _hidden(q.dtype), q.dtype) if as_keys else mask
    read, mask = cached_reads[key]
    if has_codes:
        (k_out, v_out), caches = _in_codes(op, node)
        quantize_separately(graph, q)  # the write is a plugin: k and v are before it, q after
    else:
        caches = [op.TensorScatter(cache, new, start, axis=2) for cache, new in ((k_cache, k), (v_cache, v))]
        k_out, v_out = caches
    # Uncut, TensorRT would copy them once per query head.
    keys, values = (read.of_cache(op, each, cache[3]) for each in ([k_cache, v_cache] if window_last else caches))
    if window_last:
        keys, values = (op.Concat(*each, axis=2) for each in ((keys, k), (values, v)))
    if as_keys:
        keys, values = sink_key(op, keys, cache, q.dtype), sink_value(op, values, q.dtype)
        q = sink_queries(op, q, sinks, scale)
    if copies_caches and has_codes and not is_plain:  # with the window last, TensorRT-RTX 1.7 fails to compile it
        keys, values = _as_parts_of_one(op, keys, values)
    if is_plain:
        heads_first = decompose_attention(
            op, q, keys, values, mask, sinks, reach=read.cached, cache=cache, scale=scale, softcap=softcap
        )
    else:
        heads_first = op.Attention(q, keys, values, mask, scale=scale)
    if as_keys:
        heads_first = op.Slice(heads_first, op.constant([0]), op.constant([cache[3]]), op.constant([3]))
    y = op.Transpose(heads_first, perm=[0, 2, 1, 3])
    ir.convenience.replace_nodes_and_values(graph, node, [node], op.nodes, node.outputs, [y, k_out, v_out])


def _as_parts_of_one(op: Nodes, *parts: ir.Value) -> list[ir.Value]:
    """Return keys and values as parts of one tensor, which TensorRT copies in one kernel instead of two."""
    both, count = op.Concat(*parts, axis=1), len(parts)
    return list(op.op_multi_out("Split", [both], {"axis": 1, "num_outputs": count}, num_outputs=count))


def _in_codes(op: Nodes, node: ir.Node) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return the caches with their new keys and values, and their dequantized contents."""
    q, k, v, k_cache, v_cache, start = node.inputs[:6]
    caches = (k_cache, v_cache)
    scales = [_scale(op, node.attributes[f"{kind}_scale"].as_float()) for kind in "kv"]
    codes = op.op_multi_out("CacheWriteFp8", [*caches, k, v, start, *scales], num_outputs=2, domain=DOMAIN)
    for value, cache in zip(codes, caches, strict=True):
        value.shape, value.type = cache.shape, cache.type
    numbers = [
        op.DequantizeLinear(value, scale, output_dtype=q.dtype) for value, scale in zip(codes, scales, strict=True)
    ]
    for value, cache in zip(numbers, caches, strict=True):
        value.shape, value.type = cache.shape, q.type
    return list(codes), numbers


def _scale(op: Nodes, scale: float) -> ir.Value:
    value = op.constant(scale, ir.DataType.FLOAT)
    value.shape, value.type = ir.Shape([]), ir.TensorType(ir.DataType.FLOAT)
    return value


def _skipped(graph: ir.Graph) -> ir.Value:
    """Return the graph's input that describes draft trees by their ancestors."""
    found = next((value for value in graph.inputs if value.name == SKIPPED), None)
    if found is None:
        raise BuildError(
            f"the graph has no input {SKIPPED}",
            why="graphs for TensorRT describe draft trees in this input",
            fix="export the model again with --for tensorrt",
        )
    return found


def additive_mask(
    op: Nodes,
    q: ir.Value,
    start: ir.Value,
    read: CacheReads,
    reach: ir.Value,
    window: int,
    tree: _Tree | None = None,
    *,
    window_last: bool = False,
) -> ir.Value:
    """Create the mask ``[B,1,S,N]`` of N keys, in the type of ``q`` ``[B,H,S,D]``.

    It is 0 for positions visible to ``start + s``. Without ``window_last``, queries past R, which is ``reach``, in idle
    rows, see the same positions as the last one, because a row without a visible position could give NaN. In a tree, a
    column does not see those that it skips, and an attention window does not count them.
    """
    width = op.Squeeze(op.Shape(q, start=2, end=3), op.constant([0]))
    columns = op.Range(op.constant(0), width, op.constant(1))
    first, at = op.Unsqueeze(start, op.constant([1])), read.positions
    position = op.Add(first, columns)
    if not window_last:
        position = op.Min(position, op.Sub(reach, op.constant([1])))
    position, by_row = op.Unsqueeze(position, op.constant([1, 3])), op.constant([1, 2])
    key = op.Unsqueeze(at, by_row) if read.is_by_row else at
    visible = op.LessOrEqual(key, position)
    if tree is not None:
        skipped, ancestors = tree
        column = op.Max(op.Sub(at, first), op.constant(0))  # [B,N]
        bits = op.Unsqueeze(skipped, op.constant([1, 3]))
        visible = op.And(visible, op.Not(skipped_bits(op, bits, op.Unsqueeze(column, by_row))))
        if window:
            num_visible = op.ReduceSum(op.Cast(ancestors, to=ir.DataType.INT64), op.constant([2]), keepdims=0)
            count = op.Sub(columns, num_visible)  # of skipped columns
            in_window = op.Min(column, op.Sub(width, op.constant(1)))
            key = op.Unsqueeze(op.Sub(at, op.GatherElements(count, in_window, axis=1)), by_row)
            position = op.Sub(position, op.Unsqueeze(count, op.constant([1, 3])))
    if window:
        visible = op.And(visible, op.Greater(key, op.Sub(position, op.constant(window))))
    return op.Where(visible, op.constant(0.0, q.dtype), op.constant(_hidden(q.dtype), q.dtype))


def _hidden(dtype: ir.DataType | None) -> float:
    return _MASKED.get(dtype, _MASKED_WIDE)
