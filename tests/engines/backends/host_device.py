"""A ``Device`` without a GPU: host memory, NumPy reference kernels, and results that arrive as late as possible.

Nothing that is enqueued runs before somebody waits for it, which is the latest that a GPU may be: whoever reads without
waiting, or writes over what is still to be copied, gets wrong bytes. Every access is checked to lie inside of an
allocation. It stands for CUDA and nothing else; the backend that drives it is the real one.
"""

from __future__ import annotations

import ctypes
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from peagle.engines.backends.tensorrt.device import ALIGNMENT, Box
from peagle.plugins.op_spec import OpSpec, evaluate_dim

Steps = list[Callable[[], None]]
GARBAGE = 0xA5


class HostDevice:
    """See ``Device``."""

    stream, name = 7, "NVIDIA H200"

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._memory: list[np.ndarray] = []
        self._leases: list[list[int]] = []
        self._queue: deque[Callable[[], None]] = deque()
        self._enqueued = self._done = 0
        self._recording: Steps | None = None
        self.replays = self.captures = 0

    def allocate(self, size: int) -> int:
        self._setting_up()
        memory = np.zeros(size + 2 * ALIGNMENT, np.uint8)
        address = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._add(address, size, memory)
        return address

    def pinned(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        self._setting_up()
        raw = np.full(math.prod(shape) * np.dtype(dtype).itemsize, GARBAGE, np.uint8)
        self._add(raw.ctypes.data, raw.nbytes, raw)
        return raw.view(dtype).reshape(shape)

    def _add(self, address: int, size: int, memory: np.ndarray) -> None:
        at = bisect_right(self._starts, address)
        self._starts.insert(at, address)
        self._ends.insert(at, address + size)
        self._memory.insert(at, memory)
        for addresses in self._leases:
            addresses.append(address)

    @contextmanager
    def lease(self) -> Iterator[list[int]]:
        addresses: list[int] = []
        self._leases.append(addresses)
        try:
            yield addresses
        except BaseException:
            self.free(addresses)
            raise
        finally:
            self._leases.remove(addresses)

    def free(self, addresses: Sequence[int]) -> None:
        if addresses:
            self.record().wait()
        for address in addresses:
            at = self._starts.index(address)
            self._memory[at][:] = GARBAGE
            for each in (self._starts, self._ends, self._memory):
                del each[at]

    @property
    def held(self) -> int:
        """The bytes of all allocations."""
        return sum(self._ends) - sum(self._starts)

    def view(self, address: int, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """The device's bytes at ``address`` as an array. Raises ``MemoryError`` outside of what was allocated."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address + size > self._ends[at]:
            raise MemoryError(f"{size} bytes at {address} leave the allocation")
        raw = (ctypes.c_byte * size).from_address(address)
        return np.frombuffer(raw, dtype).reshape(shape)

    def upload(self, address: int, source: np.ndarray) -> None:
        assert source.flags.c_contiguous
        target = self.view(address, (source.nbytes,), np.uint8)
        self.enqueue(lambda: np.copyto(target, source.reshape(-1).view(np.uint8)))

    def download(self, target: np.ndarray, address: int) -> None:
        assert target.flags.c_contiguous
        source = self.view(address, (target.nbytes,), np.uint8)
        self.enqueue(lambda: np.copyto(target.reshape(-1).view(np.uint8), source))

    def copy(self, target: int, source: int, size: int) -> None:
        views = self.view(target, (size,), np.uint8), self.view(source, (size,), np.uint8)
        self.enqueue(lambda: np.copyto(*views))

    def copy_box(self, target: Box, source: Box, width: int, height: int, depth: int) -> None:
        views = self._box(target, width, height, depth), self._box(source, width, height, depth)
        self.enqueue(lambda: np.copyto(*views))

    def _box(self, box: Box, width: int, height: int, depth: int) -> np.ndarray:
        assert width <= box.pitch
        assert height <= box.rows
        plane = box.rows * box.pitch
        whole = self.view(box.address, ((depth - 1) * plane + (height - 1) * box.pitch + width,), np.uint8)
        return np.lib.stride_tricks.as_strided(whole, (depth, height, width), (plane, box.pitch, 1))

    def launch(
        self, op: OpSpec, pointers: Sequence[int], dims: Mapping[str, int], attributes: Mapping[str, int]
    ) -> None:
        assert op.kernel is not None
        assert op.kernel.typed_by is None
        values = {**dims, **attributes}
        assert set(op.kernel.scalars) <= set(values)
        views = [
            self.view(pointer, [evaluate_dim(dim, values) for dim in operand.dims], operand.dtypes[0])
            for pointer, operand in zip(pointers, (*op.inputs, *op.outputs), strict=True)
        ]
        inputs, outputs = views[: len(op.inputs)], views[len(op.inputs) :]

        def run() -> None:
            for output, value in zip(outputs, op.reference(*inputs, **attributes), strict=True):
                np.copyto(output, value, casting="no")

        self.enqueue(run)

    def enqueue(self, step: Callable[[], None]) -> None:
        """Execute the stand-in for an execution context."""
        if self._recording is not None:
            self._recording.append(step)
        else:
            self._queue.append(step)
            self._enqueued += 1

    def record(self) -> _Event:
        self._setting_up()
        return _Event(self, self._enqueued)

    def capture(self, steps: Callable[[], None]) -> _Graph:
        self._setting_up()
        self._recording = recorded = []
        try:
            steps()
        finally:
            self._recording = None
        self.captures += 1
        return _Graph(self, recorded)

    def run_until(self, count: int) -> None:
        """Run what was enqueued, up to so many steps since the beginning."""
        while self._done < count:
            self._done += 1
            self._queue.popleft()()

    def _setting_up(self) -> None:
        assert self._recording is None, "nothing may be set up or waited for while a graph is captured"


class _Event:
    def __init__(self, device: HostDevice, count: int) -> None:
        self._device, self._count = device, count

    def wait(self) -> None:
        self._device._setting_up()
        self._device.run_until(self._count)


class _Graph:
    def __init__(self, device: HostDevice, steps: Steps) -> None:
        self._device, self._steps = device, steps

    def replay(self) -> None:
        self._device.replays += 1
        for step in self._steps:
            self._device.enqueue(step)
