"""The ONNX ops of graphs lowered for TensorRT, as functions of PyTorch tensors.

Sums of floats are computed in float64 and rounded once, so that a row's numbers depend neither on the width of its
window nor on the library: for what the CPU and the GPU say to be compared token by token. Inputs are all on one device,
and so are the outputs. Nothing here reads a tensor back, except the ``SIZES``, which are on the host: all else can be
captured in a CUDA graph. What the graphs do not have is not here, and refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from peagle.plugins.number_types import BY_ONNX

Op = Callable[..., Any]  # of the inputs, None for those that are absent, and the attributes; a tensor or several

# The inputs, by place, that give sizes, axes or counts, and are read. An op of no others makes its output on the host.
SIZES: Mapping[str, frozenset[int]] = {
    "ConstantOfShape": frozenset({0}),
    "Expand": frozenset({1}),
    "Pad": frozenset({1, 3}),
    "Range": frozenset({0, 1, 2}),
    "ReduceMax": frozenset({1}),
    "ReduceSum": frozenset({1}),
    "Reshape": frozenset({1}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Split": frozenset({1}),
    "Squeeze": frozenset({1}),
    "TopK": frozenset({1}),
    "Unsqueeze": frozenset({1}),
}


def torch_type(onnx: int) -> torch.dtype:
    """The type with this number in a TensorProto."""
    dtype: torch.dtype = getattr(torch, BY_ONNX[onnx].numpy)
    return dtype


def _once(op: Op) -> Op:
    """Compute in float64, and round to the type of the first input of another: weights may be kept in float64."""

    @functools.wraps(op)
    def run(*inputs: Tensor, **attributes: Any) -> Tensor:
        dtype = next((x.dtype for x in inputs if x.is_floating_point() and x.dtype != torch.float64), None)
        result: Tensor = op(*(x.double() if x.is_floating_point() else x for x in inputs), **attributes)
        return result if dtype is None else result.to(dtype)

    return run


def _ints(x: Tensor) -> list[int]:
    values: list[int] = x.reshape(-1).tolist()
    return values


def _folded(op: Callable[[Tensor, Tensor], Tensor]) -> Op:
    return lambda *inputs: functools.reduce(op, inputs)


def _clip(x: Tensor, least: Tensor | None = None, most: Tensor | None = None) -> Tensor:
    x = x if least is None else torch.maximum(x, least)
    return x if most is None else torch.minimum(x, most)


def _slice(x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None) -> Tensor:
    places = list(range(x.dim())) if axes is None else _ints(axes)
    strides = [1] * len(places) if steps is None else _ints(steps)
    parts = [slice(None)] * x.dim()
    for place, start, end, stride in zip(places, _ints(starts), _ints(ends), strides, strict=False):
        parts[place] = slice(start, end, stride)
    return x[tuple(parts)]


def _split(x: Tensor, sizes: Tensor | None = None, *, axis: int = 0, num_outputs: int = 0) -> tuple[Tensor, ...]:
    whole = x.shape[axis]
    each: int | list[int] = -(-whole // num_outputs) if sizes is None else _ints(sizes)
    return torch.split(x, each, dim=axis)


def _pad(
    x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None, *, mode: bytes = b"constant"
) -> Tensor:
    _only(mode=mode == b"constant", axes=axes is None)
    ends = _ints(pads)
    before, behind = ends[: x.dim()], ends[x.dim() :]
    sizes = [size + more + most for size, more, most in zip(x.shape, before, behind, strict=True)]
    filled = (x.new_zeros(()) if value is None else value.reshape(())).expand(sizes).contiguous()
    filled[tuple(slice(more, more + size) for size, more in zip(x.shape, before, strict=True))] = x
    return filled


def _reshape(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    sizes = _ints(shape)
    sizes = [x.shape[i] if size == 0 and not allowzero else size for i, size in enumerate(sizes)]
    if -1 in sizes:  # PyTorch does not infer it for a tensor of nothing
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = x.numel() // known if known else 0
    return x.reshape(sizes)


def _squeeze(x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(_ints(axes)))


def _unsqueeze(x: Tensor, axes: Tensor) -> Tensor:
    rank = x.dim() + axes.numel()
    for axis in sorted(axis % rank for axis in _ints(axes)):
        x = x.unsqueeze(axis)
    return x


def _expand(x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, _ints(shape)))


def _shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64)


def _range(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis %= x.dim()
    at = indices.reshape(-1).long()
    at = torch.where(at < 0, at + x.shape[axis], at)
    return x.index_select(axis, at).reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    _only(batch_dims=batch_dims == 0)
    return x[tuple(indices.unbind(-1))]


def _scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: bytes = b"none"
) -> Tensor:
    _only(reduction=reduction == b"none")
    return x.scatter(axis, indices, updates)


def _tensor_scatter(cache: Tensor, update: Tensor, start: Tensor, *, axis: int = -2, mode: bytes = b"linear") -> Tensor:
    """Write in place, as TensorRT does: the output cache is the input cache."""
    _only(mode=mode == b"linear")
    axis %= cache.dim()
    columns = start[:, None] + torch.arange(update.shape[axis], device=update.device)  # [B,S]
    shape = [1] * cache.dim()
    shape[0], shape[axis] = columns.shape
    return cache.scatter_(axis, columns.reshape(shape).expand(update.shape), update)


@_once
def _rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    _only(axis=axis in (-1, x.dim() - 1), stash_type=stash_type == 1)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * scale


@_once
def _rotary(
    x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: int = 0, rotary_embedding_dim: int = 0
) -> Tensor:
    """[B,H,S,D], with tables [positions, half of what is rotated]."""
    _only(interleaved=interleaved == 0, rank=x.dim() == 4)
    half = (rotary_embedding_dim or x.shape[-1]) // 2
    left, right, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    cos, sin = (_gather(table, positions).unsqueeze(1) for table in (cos, sin))
    return torch.cat([left * cos - right * sin, left * sin + right * cos, rest], dim=-1)


@_once
def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float) -> Tensor:
    """Attention over [B,H,S,D] with an additive mask; key heads may be shared by several query heads."""
    _only(rank=q.dim() == 4, mask=mask.is_floating_point())
    k, v = (x[:, :, None].expand(-1, -1, q.shape[1] // x.shape[1], -1, -1).flatten(1, 2) for x in (k, v))
    return torch.softmax(q @ k.mT * scale + mask, dim=-1) @ v


def _dequantize(codes: Tensor, scale: Tensor, zero: Tensor | None = None, **attributes: int) -> Tensor:
    _only(scale=scale.numel() == 1, zero=zero is None)
    return (codes.float().double() * scale.double()).to(scale.dtype)


def _reduced(op: Callable[..., Tensor]) -> Op:
    def run(x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        if axes is None and noop_with_empty_axes:
            return x
        return op(x, dim=tuple(range(x.dim())) if axes is None else tuple(_ints(axes)), keepdim=bool(keepdims))

    return _once(run)


def _top_k(x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    values, places = torch.topk(x, int(k.item()), dim=axis, largest=bool(largest), sorted=bool(sorted))
    return values, places


def _arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    _only(select_last_index=select_last_index == 0)
    return x.argmax(axis, keepdim=bool(keepdims))


def _constant_of_shape(shape: Tensor, *, value: Tensor | None = None) -> Tensor:
    return torch.zeros(_ints(shape)) if value is None else value.reshape(()).expand(_ints(shape))


def _only(**holds: bool) -> None:
    """Refuse a form of an op that no graph had when this was written."""
    if wrong := [name for name, fits in holds.items() if not fits]:
        raise NotImplementedError(f"this form of the op is not among those of the graphs: {', '.join(wrong)}")


OPS: Mapping[str, Op] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "ArgMax": _arg_max,
    "Attention": _attention,
    "Cast": lambda x, *, to, **_: x.to(torch_type(to)),
    "CastLike": lambda x, like: x.to(like.dtype),
    "Clip": _clip,
    "Concat": lambda *inputs, axis: torch.cat(inputs, dim=axis),
    "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": _dequantize,
    "Div": lambda x, y: x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc"),
    "Equal": torch.eq,
    "Exp": _once(torch.exp),
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": lambda x, indices, *, axis=0: torch.gather(x, axis, indices),
    "GatherND": _gather_nd,
    "Greater": torch.gt,
    "Identity": lambda x: x,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Log": _once(torch.log),
    "MatMul": _once(torch.matmul),
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Mod": torch.remainder,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Pad": _pad,
    "RMSNormalization": _rms_norm,
    "Range": _range,
    "ReduceMax": _reduced(torch.amax),
    "ReduceSum": _reduced(torch.sum),
    "Reshape": _reshape,
    "RotaryEmbedding": _rotary,
    "ScatterElements": _scatter_elements,
    "Shape": _shape,
    "Sigmoid": _once(torch.sigmoid),
    "Slice": _slice,
    "Softmax": _once(lambda x, *, axis=-1: torch.softmax(x, dim=axis)),
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": torch.sub,
    "TensorScatter": _tensor_scatter,
    "TopK": _top_k,
    "Transpose": lambda x, *, perm: x.permute(perm),
    "Unsqueeze": _unsqueeze,
    "Where": torch.where,
}


def run(op: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The outputs of a node. Raises ``NotImplementedError`` for an op, or a form of it, that is not among these."""
    if op not in OPS:
        raise NotImplementedError(f"no graph had the op {op} when this was written")
    results = OPS[op](*inputs, **attributes)
    return results if isinstance(results, tuple) else (results,)
