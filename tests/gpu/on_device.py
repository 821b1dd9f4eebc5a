"""Run an op's kernel on the GPU, between guard bytes that must not change."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from peagle.plugins.kernels.launch import Launcher, current_sm
from peagle.plugins.kernels.pack import obtain
from peagle.plugins.op_spec import OpSpec
from peagle.plugins.ops import OPS

GUARD = 256
GUARD_BYTE = 0xA5
STALE_BYTE = 0x5A


@functools.cache
def own_sm() -> int:
    """Compute capability of PyTorch's GPU."""
    import torch

    torch.cuda.current_stream().synchronize()  # makes its context current
    return current_sm()


@functools.cache
def launcher_of(name: str) -> Launcher:
    """The op's kernel, loaded for this machine's GPU."""
    op, sm = OPS[name], own_sm()
    return Launcher(op, sm, obtain(op, sm).code)


def dims_of(op: OpSpec, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The sizes of the op's dimensions, by name."""
    pairs = [
        pair for operand, shape in zip(op.inputs, shapes, strict=True) for pair in zip(operand.dims, shape, strict=True)
    ]
    return dict(pairs)


class Guarded:
    """Device memory for one array: ``shift`` elements past a 256-byte boundary, with guard bytes on both sides."""

    def __init__(self, like: Any, dtype: str, shift: int = 0) -> None:
        import torch

        self.shape, self.bytes = like.shape, like.size * (2 if dtype == "bfloat16" else like.dtype.itemsize)
        self.at = GUARD + shift * (self.bytes // max(like.size, 1))
        self.all = torch.full((self.at + self.bytes + GUARD,), GUARD_BYTE, dtype=torch.uint8, device="cuda")
        self.inside = self.all[self.at : self.at + self.bytes]
        self.inside.fill_(STALE_BYTE)
        self.dtype = getattr(torch, dtype)

    def write(self, array: Any) -> None:
        """Copy a NumPy array of this shape here; bfloat16 is rounded from float32."""
        import torch

        if array.size == 0:  # PyTorch does not look at nothing as bytes
            return
        values = torch.from_numpy(np.ascontiguousarray(array)).to(self.dtype).reshape(-1)
        self.inside.copy_(values.view(torch.uint8))

    def read(self) -> Any:
        """The array, after checking that the guards are whole."""
        import torch

        edges = torch.cat([self.all[: self.at], self.all[self.at + self.bytes :]])
        assert bool((edges == GUARD_BYTE).all()), "the kernel wrote outside its output"
        if self.bytes == 0:
            return np.zeros(self.shape, np.float32)
        values = self.inside.clone().view(self.dtype).reshape(self.shape).cpu()
        return (values.float() if self.dtype == torch.bfloat16 else values).numpy()

    @property
    def pointer(self) -> int:
        return int(self.inside.data_ptr())


class Call:
    """One op with device memory for its inputs and outputs, ready to be launched again and again."""

    def __init__(
        self,
        name: str,
        inputs: list[Any],
        wanted: list[Any],
        dtype: str,
        shift: int,
        attributes: Mapping[str, int],
        outputs: Mapping[int, str] = MappingProxyType({}),
    ):
        """``wanted`` are arrays of the outputs' shapes and dtypes; ``dtype`` is that of the ``typed_by`` input.

        ``outputs`` are dtypes that those arrays cannot have, by place.
        """
        self.op, self.dtype, self.attributes = OPS[name], dtype, dict(attributes)
        assert self.op.kernel is not None
        self.dims = dims_of(self.op, [x.shape for x in inputs])
        typed_by = self.op.kernel.typed_by or ""
        typed = [typed_by in (operand.name, operand.same_as) for operand in self.op.inputs]
        names = [dtype if own else str(x.dtype) for x, own in zip(inputs, typed, strict=True)]
        self.inputs = [
            Guarded(x.astype(np.float32 if name == "bfloat16" else name), name, shift)
            for x, name in zip(inputs, names, strict=True)
        ]
        for memory, x in zip(self.inputs, inputs, strict=True):
            memory.write(x)
        given = dict(zip((operand.name for operand in self.op.inputs), self.inputs, strict=True))
        self.outputs = [
            given[operand.aliases] if operand.aliases else Guarded(x, outputs.get(i, str(x.dtype)))
            for i, (operand, x) in enumerate(zip(self.op.outputs, wanted, strict=True))
        ]

    def launch(self) -> None:
        """Enqueue on PyTorch's current stream."""
        import torch

        pointers = [memory.pointer for memory in (*self.inputs, *self.outputs)]
        stream = torch.cuda.current_stream().cuda_stream
        launcher_of(self.op.name).launch(stream, pointers, self.dims, self.attributes, self.dtype)

    def read(self) -> list[Any]:
        """The outputs; also checks that the inputs' surroundings are whole."""
        for memory in self.inputs:
            memory.read()
        return [memory.read() for memory in self.outputs]


def representable(logits: Any, dtype: str) -> Any:
    """The logits as the kernel will see them, in an array that NumPy can hold: bfloat16 values stand in float32."""
    import torch

    rounded = torch.from_numpy(np.ascontiguousarray(logits.astype(np.float32))).to(getattr(torch, dtype))
    return (rounded.float() if dtype == "bfloat16" else rounded).numpy()


def run(
    name: str,
    inputs: list[Any],
    wanted: list[Any],
    dtype: str = "float32",
    shift: int = 0,
    attributes: Mapping[str, int] = MappingProxyType({}),
) -> list[Any]:
    """The kernel's outputs as NumPy arrays."""
    call = Call(name, inputs, wanted, dtype, shift, attributes)
    call.launch()
    return call.read()


def captured(steps: Callable[[], None]) -> Callable[[], None]:
    """Record the launches of ``steps`` in a CUDA graph; the returned function replays it."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()
    replay: Callable[[], None] = graph.replay
    return replay
