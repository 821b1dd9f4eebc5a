"""``python -m peagle.plugins.cpu.self_test LIBRARY``: whether the ONNX Runtime of this process can use the CPU kernels.

A function of the interface that is not where ``interface.h`` says would end the process, so ``try_library`` starts
one for it. Tested is every function that a kernel may call, and then each op with the cases of its folder.
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
from .one_node_model import one_node_model
from .sources import cpu_ops
from .stretch_trial import check_stretch

_LIMIT_SECONDS = 120  # for a process that imports ONNX Runtime on a busy machine


def try_library(path: Path) -> str:
    """Return the instructions that the kernels use here, such as ``avx512-vnni``, when they work as they should.

    ``EnvironmentProblem`` says what went wrong, in a process of its own, with this machine's ONNX Runtime.
    """
    try:
        process = subprocess.run(
            [sys.executable, "-m", __name__, str(path)],
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
    raise _unusable(path, lines[-1] if lines else f"the process that tried them ended with {ended}")


def open_library(path: Path) -> ctypes.CDLL:
    """Load the library into this process. ``EnvironmentProblem`` where that cannot be done, as with an older libc."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise _unusable(path, str(error)) from error


def instructions_of(path: Path) -> str:
    """Return the instructions that kernels of a library that works use in this process.

    ``EnvironmentProblem`` where $PEAGLE_CPU_INSTRUCTIONS names others than the machine has.
    """
    function = open_library(path).peagle_instructions
    function.restype = ctypes.c_char_p
    if name := function().decode():
        return str(name)
    raise EnvironmentProblem(
        f"$PEAGLE_CPU_INSTRUCTIONS is {os.environ.get('PEAGLE_CPU_INSTRUCTIONS')}",
        why="it names no instructions that the CPU kernels use, or none that this machine has",
        fix="unset it, or set it to portable",
    )


def _unusable(path: Path, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the CPU kernels of {path} do not work here",
        why=why,
        fix="rebuild the engine on this machine; until then standard operators run in their place, more slowly",
    )


def main() -> int:
    """Run the tests on the library that the command line names; print its instructions."""
    path = sys.argv[1]
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        options.log_severity_level = 4
        options.register_custom_ops_library(path)
        _check_interface(onnxruntime, options)
        for op in cpu_ops():
            for case in op.cpu_cases() if op.cpu_cases else ():
                _check_op(onnxruntime, options, op, case)
        check_stretch(onnxruntime, options)
    except Exception as error:
        print(" ".join(f"{type(error).__name__}: {error}".split()), file=sys.stderr)
        return 1
    print(instructions_of(Path(path)))
    return 0


def _check_interface(onnxruntime: Any, options: Any) -> None:
    """Every kind of operand and attribute: absent ones, several types, a buffer that is written in place."""
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
        raise ValueError(f"the interface gave {facts.tolist()}, {large.tolist()}")
    if written.tolist() != [77, 1, 2, 3, 4, 5]:
        raise ValueError(f"a buffer came back as {written.tolist()}")
    binding = session.io_binding()
    for name, array in (fed | {"buffer": buffer}).items():
        binding.bind_cpu_input(name, array)
    for name in ("facts", "large"):
        binding.bind_output(name)
    binding.bind_output("buffer_out", "cpu", 0, np.uint8, buffer.shape, buffer.ctypes.data)
    session.run_with_iobinding(binding)
    if buffer.tolist() != [77, 1, 2, 3, 4, 5]:
        raise ValueError(f"a buffer in place became {buffer.tolist()}")
    try:
        session.run(None, fed | {"buffer": buffer, "x": np.array([[-1]], np.float32)})
    except Exception as error:
        if "asked to fail" in str(error):
            return
        raise
    raise ValueError("an error of a kernel did not arrive")


def _check_op(onnxruntime: Any, options: Any, op: OpSpec, case: CpuCase) -> None:
    """A kernel against its reference, as its case says."""
    given = dict(zip((operand.name for operand in op.inputs), case.inputs, strict=True))
    fed = {name: x for name, x in given.items() if x is not None and name not in case.constants}
    dtypes = op.infer_dtypes([None if x is None else BY_NUMPY[x.dtype.name].name for x in case.inputs])
    outputs = {o.name: BY_NAME[dtype].numpy for o, dtype in zip(op.outputs, dtypes, strict=True)}
    model = one_node_model(op.name, given | {name: x.dtype.name for name, x in fed.items()}, outputs, case.attributes)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ours = session.run(None, fed)
    theirs = op.reference(*case.inputs, **op.check_attributes(case.attributes))
    for name, one, other in zip(outputs, ours, theirs, strict=True):
        is_near = np.allclose(one, other, case.tolerance, case.tolerance, equal_nan=True)
        if one.shape != other.shape or not (is_near if case.tolerance else np.array_equal(one, other)):
            raise ValueError(f"{op.name} gave another {name} than its reference, with {dict(case.attributes)}")


if __name__ == "__main__":
    sys.exit(main())
