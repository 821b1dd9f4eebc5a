"""Runs the CPU kernel of an op, as a model of one node, on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from peagle.plugins.cpu.one_node_model import one_node_model
from peagle.plugins.cpu.self_test import instructions_of

PATHS = ("portable", "avx2", "avx512-vnni")  # from what every machine has to what few have


def session(library: Path | None, model: bytes, threads: int = 1) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if library is not None:
        options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def kernel_session(library: Path, op: str, dtype: str, weights: Any, attributes: Any, path: str, threads: int) -> Any:
    """A session of one node with constant codes and scales, on one path through the kernel."""
    inputs = {"x": dtype, **dict(zip(("codes", "scales"), weights, strict=True))}
    model = one_node_model(op, inputs, {"y": "float32"}, attributes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_CPU_INSTRUCTIONS", path)
        return session(library, model, threads)


def paths_here(library: Path) -> tuple[str, ...]:
    """The paths through the kernels that this machine can go."""
    return PATHS[: PATHS.index(instructions_of(library)) + 1]
