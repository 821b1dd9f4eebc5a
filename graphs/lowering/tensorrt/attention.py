"""Attention for TensorRT: two ``TensorScatter`` into the network's own caches, then ``Attention`` under a shared mask.

Caches of codes are written by our own op, for TensorRT's update takes no FP8, and dequantised as a whole in front of
the attention, for the standard operator takes none either: half the memory, but a pass over the cache in every step.

The query heads that share a key head lie below one another as rows of that head, so that both have equally many. Given
more query heads than key heads, TensorRT writes keys and values out once per query head, whole cache, in every layer.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ....plugins.errors import BuildError
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
    masks: _Masks = {}
    for node in tuple(model.graph):
        if node.domain == DOMAIN and node.op_type == "CachedAttention":
            _rewrite(model.graph, node, masks)


def _rewrite(graph: ir.Graph, node: ir.Node, masks: _Masks) -> None:
    q, k, v, k_cache, v_cache, start, *rest = node.inputs
    window, scale, softcap = (node.attributes[name].value for name in ("window", "scale", "softcap"))
    op, cache = Nodes(), k_cache.shape
    sinks, ancestors = (*rest, None, None)[:2]
    if ancestors is not None:
        raise BuildError(
            f"{node.name or node.op_type} attends along a tree", why="the lowering for TensorRT has windows of one path"
        )
    is_plain = sinks is not None or bool(softcap) or cache[3] > _WIDEST_HEAD
    heads, groups = q.shape[1], cache[1]
    # Folded onto a single key head, the queries would be of one head, which TensorRT has no attention kernel for.
    sharing = 1 if is_plain or groups == 1 else heads // groups
    positions = (start, str(q.shape[2]), q.dtype, cache[2], window, sharing)
    if positions not in masks:
        masks[positions] = additive_mask(op, q, start, cache[2], window, sharing)
    mask = masks[positions]
    if k_cache.dtype == ir.DataType.FLOAT8E4M3FN:
        (k_out, v_out), (keys, values) = _in_codes(op, node)
        round_apart(graph, q)  # the write is a plugin: k and v come before it, q behind
    else:
        keys = k_out = op.TensorScatter(k_cache, k, start, axis=2)
        values = v_out = op.TensorScatter(v_cache, v, start, axis=2)
    if is_plain:
        heads_first = spelled_attention(op, q, keys, values, mask, sinks, cache=cache, scale=scale, softcap=softcap)
    elif sharing > 1:
        rows = op.Reshape(q, op.constant([0, groups, -1, cache[3]]))
        mixed = op.Attention(rows, keys, values, mask, scale=scale)
        heads_first = op.Reshape(mixed, op.constant([0, heads, -1, cache[3]]))
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


def additive_mask(op: Nodes, q: ir.Value, start: ir.Value, length: int, window: int, sharing: int = 1) -> ir.Value:
    """Make the mask ``[B,1,S,T]``, in the type of ``q`` ``[B,H,S,D]``, 0 where position ``start + s`` sees a slot.

    The rows are there ``sharing`` times, ``[B,1,sharing * S,T]``, for heads that lie below one another.
    """
    width = op.Squeeze(op.Shape(q, start=2, end=3), op.constant([0]))
    columns = op.Range(op.constant(0), width, op.constant(1))
    position = op.Add(op.Unsqueeze(start, op.constant([1])), columns)
    if sharing > 1:
        repeated = op.Expand(op.Unsqueeze(position, op.constant([1])), op.constant([1, sharing, 1]))
        position = op.Reshape(repeated, op.constant([0, -1]))
    position = op.Unsqueeze(position, op.constant([1, 3]))
    slot = op.constant(np.arange(length))
    visible = op.LessOrEqual(slot, position)
    if window:
        visible = op.And(visible, op.Greater(slot, op.Sub(position, op.constant(window))))
    hidden = op.constant(_UNSEEN.get(q.dtype, _UNSEEN_WIDE), q.dtype)
    return op.Where(visible, op.constant(0.0, q.dtype), hidden)
