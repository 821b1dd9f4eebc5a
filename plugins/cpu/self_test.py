"""``python -P -m peagle.plugins.cpu.self_test LIBRARY``: test the CPU kernels with this process's ONNX Runtime.

A function missing from where ``interface.h`` expects it would crash the process, so ``try_library`` runs the test in a
child process, which imports nothing from the current folder. The test calls every interface function that kernels use,
then runs each op's cases.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import EnvironmentProblem
from ..number_types import BY_NAME, BY_NUMPY
from ..op_spec import CpuCase, OpSpec
from . import INSTRUCTIONS
from .fused_region_trial import check_fused_region
from .one_node_model import one_node_model
from .sources import cpu_ops

_LIMIT_SECONDS = 120  # seconds; importing ONNX Runtime is slow on a busy machine


def try_library(path: Path) -> str:
    """Test the library in a child process; return the instruction set it uses here, such as ``avx512-vnni``.

    Raises ``EnvironmentProblem`` with the reason if it does not work with this machine's ONNX Runtime.
    """
    try:
        process = subprocess.run(
            [sys.executable or "python3", "-P", "-m", __name__, str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(path, str(error)) from error
    if process.returncode == 0 and process.stdout.strip():
        return process.stdout.strip()
    lines = process.stderr.strip().splitlines()
    ended = f"signal {-process.returncode}" if process.returncode < 0 else f"exit status {process.returncode}"
    raise _unusable(path, lines[-1] if lines else f"the test process ended with {ended}")


def open_library(path: Path) -> ctypes.CDLL:
    """Load the library into this process.

    Raises ``EnvironmentProblem`` if that fails, for example with an older libc.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise _unusable(path, str(error)) from error


def instructions_of(path: Path) -> str:
    """Return the instruction set that a tested library uses in this process.

    Raises ``EnvironmentProblem`` if $PEAGLE_CPU_INSTRUCTIONS names one that this machine lacks.
    """
    function = open_library(path).peagle_instructions
    function.restype = ctypes.c_char_p
    if name := function().decode():
        return str(name)
    raise EnvironmentProblem(
        f"${INSTRUCTIONS} is {os.environ.get(INSTRUCTIONS)}",
        why="this instruction set is unknown, or this machine does not support it",
        fix="unset it, or set it to portable",
    )


def _unusable(path: Path, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the CPU kernels of {path} do not work on this machine",
        why=why,
        fix="rebuild the engine on this machine; until then, it uses slower standard operators",
    )


def main() -> int:
    """Test the library named on the command line; print its instruction set."""
    path = sys.argv[1]
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        options.log_severity_level = 4
        options.register_custom_ops_library(os.fsencode(path).decode())  # ONNX Runtime expects UTF-8 in any locale
        _check_interface(onnxruntime, options)
        for op in cpu_ops():
            for case in op.cpu_cases() if op.cpu_cases else ():
                _check_op(onnxruntime, options, op, case)
        check_fused_region(onnxruntime, options)
    except Exception as error:
        print(" ".join(f"{type(error).__name__}: {error}".split()), file=sys.stderr)
        return 1
    print(instructions_of(Path(path)))
    return 0


def _check_interface(onnxruntime: Any, options: Any) -> None:
    """Test every kind of operand and attribute: absent inputs, several types, a buffer written in place."""
    inputs: dict[str, Any] = {"x": "float32", "c": np.array([5, 6, 7], np.int32), "absent": None}
    inputs |= {"flag": "bool", "count": "int64", "buffer": "uint8"}
    outputs = {"facts": "float32", "buffer_out": "uint8", "unwanted": None, "large": "bool"}
    model = one_node_model("SelfTest", inputs, outputs, {"text": "word", "whole": -41, "number": 2.5})
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    fed = {"x": np.array([[3, 4, 9]], np.float32), "flag": np.array([True]), "count": np.array([2**20])}
    buffer = np.arange(6, dtype=np.uint8)
    facts, written, large = session.run(None, fed | {"buffer": buffer})
    expected = [[-41, 2.5, 7, 97, 2, 9], [0, 1, 2**20, 0, 2, 5]]
    if facts.tolist() != expected or large.tolist() != [[False, True, True]]:
        raise ValueError(f"unexpected results from the test kernel: {facts.tolist()}, {large.tolist()}")
    if written.tolist() != [77, 1, 2, 3, 4, 5]:
        raise ValueError(f"wrong contents in a returned buffer: {written.tolist()}")
    binding = session.io_binding()
    for name, array in (fed | {"buffer": buffer}).items():
        binding.bind_cpu_input(name, array)
    for name in ("facts", "large"):
        binding.bind_output(name)
    binding.bind_output("buffer_out", "cpu", 0, np.uint8, buffer.shape, buffer.ctypes.data)
    session.run_with_iobinding(binding)
    if buffer.tolist() != [77, 1, 2, 3, 4, 5]:
        raise ValueError(f"wrong contents in a buffer updated in place: {buffer.tolist()}")
    try:
        session.run(None, fed | {"buffer": buffer, "x": np.array([[-1]], np.float32)})
    except Exception as error:
        if "asked to fail" in str(error):
            return
        raise
    raise ValueError("a kernel's error was not reported")


def _check_op(onnxruntime: Any, options: Any, op: OpSpec, case: CpuCase) -> None:
    """Compare a kernel with its reference on one case."""
    given = dict(zip((operand.name for operand in op.inputs), case.inputs, strict=True))
    fed = {name: x for name, x in given.items() if x is not None and name not in case.constants}
    dtypes = op.infer_dtypes([None if x is None else BY_NUMPY[x.dtype.name].name for x in case.inputs])
    outputs = {o.name: BY_NAME[dtype].numpy for o, dtype in zip(op.outputs, dtypes, strict=True)}
    model = one_node_model(op.name, given | {name: x.dtype.name for name, x in fed.items()}, outputs, case.attributes)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ours = session.run(None, fed)
    expected = op.reference(*case.inputs, **op.check_attributes(case.attributes))
    for name, one, other in zip(outputs, ours, expected, strict=True):
        is_near = np.allclose(one, other, case.tolerance, case.tolerance, equal_nan=True)
        if one.shape != other.shape or not (is_near if case.tolerance else np.array_equal(one, other)):
            raise ValueError(f"{op.name}: {name} differs from the reference, with {dict(case.attributes)}")


if __name__ == "__main__":
    sys.exit(main())
