"""Attention for TensorRT: two ``TensorScatter`` into the network's own caches, then ``Attention`` under a shared mask.

A pass reads as much of the caches as its input ``positions`` is long, and not all T of them: the host gives the least
of a few lengths that holds every busy row (``engines.backends.tensorrt.reach``), so a round's cost follows the context.

Caches of codes are written by our own op, for TensorRT's update takes no FP8, and dequantised in front of the
attention, for the standard operator takes none either.
"""

from __future__ import annotations

import onnx_ir as ir

from ....plugins.errors import BuildError
from ....plugins.graph_contract import POSITIONS, TENSORS, is_cache
from ....plugins.op_spec import DOMAIN
from ...node_tape import Nodes
from .decomposed_attention import spelled_attention
from .shared_inputs import round_apart

_WIDEST_HEAD = 256  # that TensorRT-RTX 1.7 has a fused kernel for

# Finite, so that no kernel meets a tile of nothing but infinities; far below any score of what was written to a cache.
_UNSEEN = {ir.DataType.FLOAT16: -65504.0}
_UNSEEN_WIDE = -1e30

_Masks = dict[tuple[object, ...], ir.Value]


def apply(model: ir.Model) -> None:
    """Rewrite every layer of attention in place; layers that see the same positions share one mask."""
    layers = [node for node in model.graph if node.domain == DOMAIN and node.op_type == "CachedAttention"]
    if not layers:
        return
    positions, masks = _positions(model.graph), _Masks()
    for node in layers:
        _rewrite(model.graph, node, positions, masks)


def _positions(graph: ir.Graph) -> ir.Value:
    """The numbers of the positions that are read, a new input before the caches."""
    kind = TENSORS[POSITIONS]
    value = ir.Value(name=POSITIONS, shape=ir.Shape(kind.dims), type=ir.TensorType(ir.DataType.INT64))
    at = next((index for index, each in enumerate(graph.inputs) if is_cache(each.name or "")), len(graph.inputs))
    graph.inputs.insert(at, value)
    return value


def _rewrite(graph: ir.Graph, node: ir.Node, positions: ir.Value, masks: _Masks) -> None:
    q, k, v, k_cache, v_cache, start, *rest = node.inputs
    window, scale, softcap = (node.attributes[name].value for name in ("window", "scale", "softcap"))
    op, cache = Nodes(), k_cache.shape
    sinks, ancestors = (*rest, None, None)[:2]
    if ancestors is not None:
        raise BuildError(
            f"{node.name or node.op_type} attends along a tree", why="the lowering for TensorRT has windows of one path"
        )
    is_plain = sinks is not None or bool(softcap) or cache[3] > _WIDEST_HEAD
    seen = (start, str(q.shape[2]), q.dtype, window)
    if seen not in masks:
        masks[seen] = additive_mask(op, q, start, positions, window)
    mask, reach = masks[seen], op.Shape(positions)
    if k_cache.dtype == ir.DataType.FLOAT8E4M3FN:
        (k_out, v_out), (whole_keys, whole_values) = _in_codes(op, node)
        round_apart(graph, q)  # the write is a plugin: k and v come before it, q behind
    else:
        whole_keys = k_out = op.TensorScatter(k_cache, k, start, axis=2)
        whole_values = v_out = op.TensorScatter(v_cache, v, start, axis=2)
    # Also why TensorRT lets query heads share a key head: whole caches it writes out once per query head instead.
    first, axis = op.constant([0]), op.constant([2])
    keys, values = (op.Slice(whole, first, reach, axis) for whole in (whole_keys, whole_values))
    if is_plain:
        heads_first = spelled_attention(
            op, q, keys, values, mask, sinks, reach=reach, cache=cache, scale=scale, softcap=softcap
        )
    else:
        heads_first = op.Attention(q, keys, values, mask, scale=scale)
    y = op.Transpose(heads_first, perm=[0, 2, 1, 3])
    ir.convenience.replace_nodes_and_values(graph, node, [node], op.nodes, node.outputs, [y, k_out, v_out])


def _in_codes(op: Nodes, node: ir.Node) -> tuple[list[ir.Value], list[ir.Value]]:
    """The caches with what is new in them, and the numbers that their codes stand for."""
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


def additive_mask(op: Nodes, q: ir.Value, start: ir.Value, positions: ir.Value, window: int) -> ir.Value:
    """Make the mask ``[B,1,S,R]``, in the type of ``q`` ``[B,H,S,D]``, 0 where position ``start + s`` sees another.

    What stands behind all R, in an idle row, sees as the last of them does: a row of nothing seen could be no numbers.
    """
    width = op.Squeeze(op.Shape(q, start=2, end=3), op.constant([0]))
    columns = op.Range(op.constant(0), width, op.constant(1))
    position = op.Add(op.Unsqueeze(start, op.constant([1])), columns)
    position = op.Min(position, op.Sub(op.Shape(positions), op.constant([1])))
    position = op.Unsqueeze(position, op.constant([1, 3]))
    visible = op.LessOrEqual(positions, position)
    if window:
        visible = op.And(visible, op.Greater(positions, op.Sub(position, op.constant(window))))
    hidden = op.constant(_UNSEEN.get(q.dtype, _UNSEEN_WIDE), q.dtype)
    return op.Where(visible, op.constant(0.0, q.dtype), hidden)
