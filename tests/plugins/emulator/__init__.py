"""Run the CUDA kernels on a CPU: the source that nvcc compiles, compiled by g++ with ``machine.h``.

It knows nothing of a GPU's memory model or speed. It does check what is most of a kernel: indices, clamps, barriers
that all threads reach, and results.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peagle.plugins.kernels.sources import entries, source
from peagle.plugins.ops import OPS

COMPILER = shutil.which("g++")
HERE = Path(__file__).resolve().parent

# Set by the test that runs the others again with these; the process must then have started with the libraries.
SANITIZE = "PEAGLE_EMULATOR_SANITIZE"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def name_of(dtype: Any) -> str:
    """Return the specs' name for a dtype of NumPy."""
    return str(dtype).replace("float8_", "float8")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="peagle-emulator-")


def _entry(name: str, operands: int, scalars: int, outputs: int) -> str:
    """C text of ``emulate_<name>(blocks, threads, cluster, pointers, scalars)``."""
    arguments = [f"peagle::Pointer{{p[{i}]}}" for i in range(operands)]
    arguments += [f"n[{i}]" for i in range(scalars)]
    arguments += [f"peagle::Pointer{{p[{operands + i}]}}" for i in range(outputs)]
    return f"""
extern "C" int emulate_{name}(int blocks, int threads, int cluster, void** p, int* n) {{
  return peagle::launch(blocks, threads, cluster, [=] {{ {name}({", ".join(arguments)}); }});
}}"""


@functools.cache
def library(op: str, threads: int) -> ctypes.CDLL:
    """The emulator of one op for thread blocks of that size."""
    assert COMPILER is not None
    spec = OPS[op]
    assert spec.kernel is not None
    sizes = (len(spec.inputs), len(spec.kernel.scalars), len(spec.outputs))
    drivers = "".join(_entry(name, *sizes) for name in entries(spec))
    text = f'#include "machine.h"\n{source(spec)}\n#line 1 "drivers"\n{drivers}\n'
    path = Path(_folder().name) / f"{op}-{threads}.so"
    command = [COMPILER, "-x", "c++", "-", "-std=c++17", "-O2", "-g1", "-ffp-contract=off", "-fPIC", "-shared"]
    command += ["-Wall", "-Wno-unknown-pragmas", f"-DPEAGLE_THREADS={threads}", f"-I{HERE}", "-o", str(path)]
    command += SANITIZERS if os.environ.get(SANITIZE) else []
    process = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert not process.stderr, process.stderr  # warnings
    return ctypes.CDLL(str(path))


def run(op: str, inputs: Sequence[Any], *, threads: int, cluster: int = 1, **attributes: Any) -> list[Any]:
    """The outputs of the op's kernel, from contiguous arrays in the order of its spec."""
    spec = OPS[op]
    kernel = spec.kernel
    assert kernel is not None
    filled = spec.check_attributes(attributes)
    dtypes = [name_of(array.dtype) for array in inputs]
    shapes = spec.infer_shapes([array.shape for array in inputs], filled)
    by_name = dict(zip((operand.name for operand in spec.inputs), inputs, strict=True))
    outputs = [
        by_name[operand.aliases].copy() if operand.aliases else np.full(shape, 0x55, dtype)
        for operand, shape, dtype in zip(spec.outputs, shapes, spec.infer_dtypes(dtypes), strict=True)
    ]  # whatever a kernel leaves unwritten stays wrong, or as the input was that it writes into
    arrays = [np.ascontiguousarray(array) for array in inputs] + outputs
    dims: dict[str, int] = {}
    for operand, array in zip(spec.inputs, inputs, strict=True):
        dims |= zip(operand.dims, array.shape, strict=True)
    scalars = [(dims | filled)[name] for name in kernel.scalars]
    typed = [dtype for o, dtype in zip(spec.inputs, dtypes, strict=True) if o.name == kernel.typed_by]
    entry = getattr(library(op, threads), "_".join(["emulate", kernel.entry, *typed]))
    pointers = (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
    blocks = kernel.num_blocks(dims) * cluster
    failed = entry(blocks, threads, cluster, pointers, (ctypes.c_int * len(scalars))(*scalars))
    assert not failed, "threads wait for others that never come"
    return outputs
