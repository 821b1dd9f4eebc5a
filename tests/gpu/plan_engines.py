"""Engines over the plans of ``plan_folders``: on the GPU with PyTorch, and on the host with ONNX Runtime."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from tests.engines.backends.plan_engine import engine_on, plan_engine
from tests.gpu import torch_device
from tests.gpu.plan_folders import open_plans

if TYPE_CHECKING:
    from peagle.engines import Engine
    from tests.gpu.torch_device import TorchDevice

SLOTS = 3


@functools.cache
def plan_engines(name: str, base: Path) -> PlanEngines:
    """The engines of one kind, which all modules of a run share; ``base`` is its folder of temporary files."""
    folder = base / f"plans-{name}"
    folder.mkdir()
    return PlanEngines(name, folder)


class PlanEngines:
    """Both engines of one kind, created on demand, with memory for ``SLOTS`` requests."""

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = folder
        self._manifest, self._tokenizer = open_plans(name, folder)

    @functools.cached_property
    def on_the_gpu(self) -> tuple[Engine, TorchDevice]:
        """The engine that is tested, and its device."""
        return self.another_on_the_gpu()

    def another_on_the_gpu(self) -> tuple[Engine, TorchDevice]:
        """An engine of one test, with a device of its own."""
        from tests.gpu.torch_plans import TorchGraph

        device = torch_device.TorchDevice()
        return engine_on(device, TorchGraph, self._folder, self._manifest, self._tokenizer, SLOTS), device

    @functools.cached_property
    def on_the_host(self) -> Engine:
        """The engines to compare with: the same backend over a device without a GPU, and ONNX Runtime."""
        return plan_engine(self._folder, self._manifest, self._tokenizer, SLOTS)[0]
