"""``python -m peagle.plugins.cpu.self_test LIBRARY``: whether the ONNX Runtime of this process can use the CPU kernels.

A function of the interface that is not where ``interface.h`` says would end the process, so ``try_library`` starts
one for it. Tested is every function that a kernel may call, and then each op with small matrices, bit by bit.
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
from ..ops import OPS
from ..ops.quantized_linear.packed_weights import FORMATS, GGUF_BLOCK_BYTES, pack_codes, pack_gguf, pack_scales
from .one_node_model import one_node_model

_LIMIT_SECONDS = 120  # for a process that imports ONNX Runtime on a busy machine
_ROWS, _COLUMNS = 37, 96  # of the matrices: neither whole tiles, nor one block


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
        for name in FORMATS:
            _check_format(onnxruntime, options, name)
    except Exception as error:
        print(" ".join(f"{type(error).__name__}: {error}".split()), file=sys.stderr)
        return 1
    print(instructions_of(Path(path)))
    return 0


def _check_interface(onnxruntime: Any, options: Any) -> None:
    attributes = {"text": "word", "whole": -41, "number": 2.5}
    constants = {"c": np.array([5, 6, 7], np.int32)}
    model = one_node_model("SelfTest", {"x": "float32"}, constants, "y", attributes)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (facts,) = session.run(None, {"x": np.array([[3, 4, 9]], np.float32)})
    if facts.tolist() != [[-41, 2.5, 7, 2], [1, 97, 2, 9]]:
        raise ValueError(f"the interface gave {facts.tolist()}")
    try:
        session.run(None, {"x": np.array([[-1]], np.float32)})
    except Exception as error:
        if "asked to fail" in str(error):
            return
        raise
    raise ValueError("an error of a kernel did not arrive")


def _check_format(onnxruntime: Any, options: Any, name: str) -> None:
    """Both ops with weights of a format, against their references."""
    rng = np.random.default_rng(0)
    if name == "int8":
        whole = rng.integers(-128, 128, (_ROWS, _COLUMNS), dtype=np.int8)
        codes, scales = pack_codes(name, whole), pack_scales(name, rng.random((_ROWS, 1), np.float32))
    else:
        blocks = rng.integers(0, 256, (_ROWS, _COLUMNS // 32, GGUF_BLOCK_BYTES[name]), dtype=np.uint8)
        blocks[..., 1] &= 0x3F  # the exponents of the float16 numbers: finite
        blocks[..., 3] &= 0x3F if name == "q4_1" else 0xFF
        codes, scales = pack_gguf(name, blocks.reshape(_ROWS, -1))
    x = rng.normal(size=(7, _COLUMNS)).astype(np.float32)
    ids = np.array([0, _ROWS - 1, 16])
    for op, dtype, fed, more in (
        ("QuantizedLinear", "float32", x, {}),
        ("QuantizedEmbedding", "int64", ids, {"columns": _COLUMNS}),
    ):
        attributes = {"format": name, "rows": _ROWS, **more}
        model = one_node_model(op, {"x": dtype}, {"codes": codes, "scales": scales}, "y", attributes)
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        (ours,) = session.run(None, {"x": fed})
        (reference,) = OPS[op].reference(fed, codes, scales, **attributes)
        if not np.array_equal(ours, reference):
            raise ValueError(f"{op} gave other numbers than its reference, in {name}")


if __name__ == "__main__":
    sys.exit(main())
