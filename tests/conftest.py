"""Fixtures and hooks for all tests."""

from __future__ import annotations

import collections
import functools
import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest
from hypothesis import settings

try:
    import peagle.plugins  # noqa: F401
except ImportError:
    # tests/gpu may run without installing the package: the top-level folders are its subpackages.
    sys.modules["peagle"] = types.ModuleType("peagle")
    sys.modules["peagle"].__path__ = [str(Path(__file__).resolve().parent.parent)]

# Shared fixtures. These files import heavy libraries inside the fixtures, because tests/gpu runs without them.
_FIXTURES = (
    "stages", "attacks", "bodies", "browsers", "commands", "cpu_kernels", "engines", "exports", "graphs", "heads",
    "pairs", "plugin_library", "servers", "temporary", "thrift", "trials", "triton",
)  # fmt: skip
pytest_plugins = [f"tests.fixtures.{name}" for name in _FIXTURES]

# Examples are the same in every run; `--hypothesis-profile explore` draws new ones, weekly in CI.
settings.register_profile("explore", print_blob=True, deadline=None)  # a busy machine is not a failure
settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("same")

# The models of the tests are tiny: a second thread costs more than it saves, especially on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs unless their tests were selected: on a machine with a GPU, a build requires the backend to be named."""
    if "gpu" not in (config.option.markexpr or ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let parallel workers begin with the files that take longest, so that none waits for the last one.

    These are the files that say so, and then those with the most tests that were not deselected.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        tests = collections.Counter(item.path for item in items)
        items.sort(key=lambda item: (item.get_closest_marker("begins_first") is None, -tests[item.path]))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run, and say why."""
    for marker, missing in (("gpu", _missing_for_gpu), ("tensorrt", _missing_for_tensorrt)):
        if item.get_closest_marker(marker) and (reason := missing()):
            pytest.skip(reason)


@functools.cache
def _missing_for_gpu() -> str | None:
    """Why the kernels cannot be run here. They need a GPU, and PyTorch to hold memory on it."""
    try:
        import torch
        from cuda.bindings import driver  # noqa: F401
    except ImportError as error:
        return f"needs PyTorch and cuda-bindings (part of cuda-core): {error}"
    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU and a PyTorch with CUDA"
    capability = torch.cuda.get_device_capability()
    return None if capability >= (8, 0) else f"needs a GPU of compute capability 8.0 or more, this has {capability}"


@functools.cache
def _missing_for_tensorrt() -> str | None:
    """Why full TensorRT cannot be used here. A mere folder of that name is not it."""
    spec = importlib.util.find_spec("tensorrt")
    return "needs TensorRT (pip install 'peagle-compile[tensorrt]')" if spec is None or spec.origin is None else None
