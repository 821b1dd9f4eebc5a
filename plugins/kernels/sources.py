"""The CUDA source of an op's kernel: one string without ``#include``, so that nvcc and NVRTC compile identical text."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..errors import BuildError
from ..op_spec import Kernel, OpSpec
from ..ops import OPS

# Compiled ahead of time: Ada, Hopper, data-centre Blackwell, workstation Blackwell.
TARGETS = (89, 90, 100, 120)

# Options of both compilers. Fast math stays off: the tokens sampled for a seed must not depend on it.
OPTIONS = ("-std=c++17",)

_OPS = Path(__file__).resolve().parent.parent / "ops"
_HERE = Path(__file__).resolve().parent


def kernel_ops() -> tuple[OpSpec, ...]:
    """Return the ops that have a CUDA kernel, sorted by name."""
    return tuple(OPS[name] for name in sorted(OPS) if OPS[name].kernel is not None)


def kernel_of(op: OpSpec) -> Kernel:
    """Return an op's launch description. Raises ``BuildError`` for an op without a CUDA kernel."""
    if op.kernel is None:
        raise BuildError(
            f"{op.name} has no CUDA kernel",
            why="lowering for TensorRT uses other nodes in place of this op",
            fix="lower the graph for TensorRT first",
        )
    return op.kernel


def entries(op: OpSpec) -> tuple[str, ...]:
    """Return the names of the ``__global__`` functions: one, or one per dtype of the ``typed_by`` input."""
    kernel = kernel_of(op)
    if kernel.typed_by is None:
        return (kernel.entry,)
    (operand,) = (operand for operand in op.inputs if operand.name == kernel.typed_by)
    return tuple(f"{kernel.entry}_{dtype}" for dtype in operand.dtypes)


def source(op: OpSpec) -> str:
    """Return the source to compile: shared headers, then ``kernel.cu``; ``#line`` keeps messages readable."""
    parts = [(f"kernels/{name}", _HERE / name) for name in ("primitives.cuh", *kernel_of(op).headers)]
    parts.append((f"{op.folder}/kernel.cu", _OPS / op.folder / "kernel.cu"))
    try:
        return "".join(f'#line 1 "{name}"\n{path.read_text(encoding="utf-8")}\n' for name, path in parts)
    except OSError as error:
        raise BuildError(
            f"cannot read the kernel of {op.name}: {error}", fix="reinstall peagle-compile; the package is incomplete"
        ) from error


def digest(op: OpSpec) -> str:
    """Return the hex SHA-256 of everything but the compiler that determines the machine code: source and options."""
    return hashlib.sha256("\n".join([*OPTIONS, source(op)]).encode()).hexdigest()
