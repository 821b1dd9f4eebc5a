"""Run the CPU kernel of an op, as a one-node model, on ONNX Runtime."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from peagle.plugins.cpu.one_node_model import one_node_model
from peagle.plugins.cpu.self_test import instructions_of
from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.number_types import BY_NAME, BY_NUMPY
from peagle.plugins.ops import OPS
from tests.plugins.cpu import other_machine

# From what every machine has to what few have.
PATHS = other_machine.PATHS if platform.machine() == "aarch64" else ("portable", "avx2", "avx-vnni", "avx512-vnni")


def session(library: Path | None, model: bytes, threads: int = 1) -> Any:
    """A session of ONNX Runtime, or what stands in for it where a test runs the kernels of another machine."""
    if library is not None and other_machine.COMMAND in os.environ:
        return other_machine.session_of_both(lambda: _session(library, model, threads), model, threads)
    return _session(library, model, threads)


def _session(library: Path | None, model: bytes, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if library is not None:
        options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def kernel_session(library: Path, op: str, dtype: str, weights: Any, attributes: Any, path: str, threads: int) -> Any:
    """A session of one node on one path through the kernel; ``weights`` are constants by name, or codes and scales."""
    constants = weights if isinstance(weights, dict) else dict(zip(("codes", "scales"), weights, strict=True))
    inputs = {"x": dtype, **constants}
    model = one_node_model(op, inputs, {"y": "float32"}, attributes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_CPU_INSTRUCTIONS", path)
        return session(library, model, threads)


def run_op(library: Path, op: str, inputs: Sequence[Any], path: str, threads: int = 1, **attributes: Any) -> list[Any]:
    """The outputs of an op's kernel on one path through it; every input is fed."""
    dtypes = tuple(each.dtype.name for each in inputs)
    fed = {o.name: _fed(each) for o, each in zip(OPS[op].inputs, inputs, strict=True)}
    runner = _session_of(library, op, dtypes, tuple(attributes.items()), path, threads)
    return [each.numpy() for each in runner.run_with_ort_values(None, fed)]


def _fed(array: Any) -> Any:
    if array.dtype.name != "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
    codes = np.ascontiguousarray(array).view(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(codes, BY_NUMPY["bfloat16"].onnx)


@functools.cache
def _session_of(library: Path, op: str, dtypes: tuple[str, ...], attributes: Any, path: str, threads: int) -> Any:
    spec = OPS[op]
    inputs = dict(zip((operand.name for operand in spec.inputs), dtypes, strict=True))
    given = spec.infer_dtypes([BY_NUMPY[dtype].name for dtype in dtypes])
    outputs = {o.name: BY_NAME[dtype].numpy for o, dtype in zip(spec.outputs, given, strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_CPU_INSTRUCTIONS", path)
        return session(library, one_node_model(op, inputs, outputs, dict(attributes)), threads)


def paths_here(library: Path) -> tuple[str, ...]:
    """The paths through the kernels that the machine under test can go."""
    if other_machine.COMMAND in os.environ:
        return other_machine.paths()
    return tuple(path for path in PATHS if _runs(library, path))


def _runs(library: Path, path: str) -> bool:
    with pytest.MonkeyPatch.context() as patch, suppress(EnvironmentProblem):
        patch.setenv("PEAGLE_CPU_INSTRUCTIONS", path)
        return instructions_of(library) == path
    return False
