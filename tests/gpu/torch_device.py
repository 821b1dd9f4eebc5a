"""The runtime's own CUDA device, with PyTorch beside it on the same stream and memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from peagle.engines.backends.tensorrt.device import CapturedGraph, CudaDevice
from peagle.plugins.number_types import BY_NAME


class TorchDevice(CudaDevice):
    """Counts captures and replays, and gives PyTorch what it works on.

    PyTorch keeps memory by stream. What it makes in a pass is of the runtime's stream, and dead when the pass ends, so
    that passes share it, replayed ones too: they run in turn. What must last is of the default stream, so that no pass
    is given its memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.captures = self.replays = 0
        self._torch_stream = torch.cuda.ExternalStream(self.stream, device="cuda:0")

    def enqueue_pass(self, kind: Hashable, step: Callable[[], None]) -> None:
        """Let PyTorch enqueue on the runtime's stream. Passes of one ``kind`` take the same steps."""
        self._enter()
        with torch.cuda.stream(self._torch_stream):
            step()

    def tensor(self, address: int, shape: Sequence[int], dtype: str) -> torch.Tensor:
        """The memory at ``address`` as a tensor of this type of the project's."""
        kind = getattr(torch, BY_NAME[dtype].numpy)
        size = int(np.prod(shape)) * kind.itemsize
        if not size:
            return torch.empty(tuple(shape), dtype=kind, device="cuda")
        memory = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
        raw = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=memory), device="cuda")
        assert raw.data_ptr() == address, "PyTorch made a copy"
        return raw.view(kind).reshape(tuple(shape))

    def constant(self, host: torch.Tensor) -> torch.Tensor:
        """A copy on the device that outlives every pass. Raises ``RuntimeError`` while a graph is captured."""
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a captured pass asks for a constant that its first run did not")
        with torch.cuda.stream(torch.cuda.default_stream()):
            copy = host.to("cuda")
            torch.cuda.current_stream().synchronize()
        return copy

    def view(self, address: int, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """A copy of what the memory at ``address`` holds after all enqueued work."""
        target = self.pinned(shape, dtype)
        self.download(target, address)
        self.record().wait()
        return target

    def capture(self, steps: Callable[[], None]) -> CapturedGraph:
        self.captures += 1
        self._enter()
        with torch.cuda.stream(self._torch_stream):
            torch.cuda.current_blas_handle()  # each thread has its own, which is not made in a capture
        return super().capture(steps)

    def _replay(self, graph: Any) -> None:
        self.replays += 1
        super()._replay(graph)
