"""Run the compiled kernels on a CPU: interprets the PTX from NVRTC or nvcc, instruction by instruction.

Unlike the emulator, which compiles their C++ for a CPU, this runs what ``ptxas`` gets: the compiler's unrolled and
reordered code, clusters, shuffles and atomics, whole grids with the launch of the spec. It also finds what a GPU would
not tell: data races, memory that was never written, accesses out of bounds, barriers that some threads miss. It knows
nothing of a GPU's speed, and nothing of what ``ptxas`` makes of the text.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from peagle.plugins.kernels.launch import geometry, scalars
from peagle.plugins.kernels.sources import kernel_of
from peagle.plugins.ops import OPS
from tests.plugins.emulator import name_of

from .compilers import NVRTC, ptx_of
from .errors import UnwrittenError
from .launch import Argument, Input, Output, Result, launch
from .machine import MAX_STEPS
from .parse import parse
from .program import Program, program_of
from .syntax import Module
from .threads import Shape


@functools.cache
def _module(op: str, sm: int, compiler: str) -> Module:
    return parse(ptx_of(op, sm, compiler))


@functools.cache
def _program(op: str, sm: int, entry: str, compiler: str) -> Program:
    return program_of(_module(op, sm, compiler), entry)


def program(op: str, sm: int, entry: str, compiler: str = NVRTC) -> Program:
    """Return a kernel of an op, ready to run; made once."""
    return _program(op, sm, entry, compiler)


def entry_of(op: str, inputs: Sequence[Any]) -> str:
    """Return the entry point for inputs of these dtypes."""
    spec = OPS[op]
    kernel = kernel_of(spec)
    typed = [name_of(x.dtype) for o, x in zip(spec.inputs, inputs, strict=True) if o.name == kernel.typed_by]
    return "_".join([kernel.entry, *typed])


def run(op: str, inputs: Sequence[Any], sm: int, *, shift: int | Mapping[str, int] = 0, **attributes: Any) -> list[Any]:
    """Return the outputs of the op's kernel on a GPU of that generation, from arrays in the order of its spec.

    ``shift`` moves operands that many numbers off their alignment: those that it names, or all of several dimensions.
    """
    code = program(op, sm, entry_of(op, inputs))
    return launch_program(code, op, inputs, sm, shift=shift, **attributes).outputs


def launch_program(
    code: Program,
    op: str,
    inputs: Sequence[Any],
    sm: int,
    *,
    shift: int | Mapping[str, int] = 0,
    max_steps: int = MAX_STEPS,
    **attributes: Any,
) -> Result:
    """Run a program as the op's kernel, with the geometry of its spec.

    Raises ``UnwrittenError`` for a result that lacks bytes, and a ``Fault`` for what no kernel may do.
    """
    spec = OPS[op]
    filled = spec.check_attributes(attributes)
    shapes = spec.infer_shapes([array.shape for array in inputs], filled)
    dtypes = spec.infer_dtypes([name_of(array.dtype) for array in inputs])
    dims: dict[str, int] = {}
    for operand, array in zip(spec.inputs, inputs, strict=True):
        dims |= zip(operand.dims, array.shape, strict=True)
    place = geometry(spec, sm, dims)
    shape = Shape(place.grid, place.block, place.cluster)

    arguments: list[Argument] = []
    names = [operand.name for operand in spec.inputs]
    aliased = {output.aliases for output in spec.outputs}
    for name, array in zip(names, inputs, strict=True):
        off = _shift(shift, name, array.ndim) * array.dtype.itemsize
        as_output = Output(array.shape, array.dtype, np.asarray(array), off)
        arguments.append(as_output if name in aliased else Input(np.asarray(array), off))
    arguments += scalars(spec, dims, filled)
    aliases = {}
    for operand, size, dtype in zip(spec.outputs, shapes, dtypes, strict=True):
        if operand.aliases:
            aliases[len(arguments)] = names.index(operand.aliases)
        kind = np.asarray(inputs[names.index(operand.aliases)]).dtype if operand.aliases else np.dtype(dtype)
        off = _shift(shift, operand.name, len(size)) * kind.itemsize
        arguments.append(Output(tuple(size), kind, None, off))
    result = launch(code, shape, arguments, max_steps, aliases)
    skipped = len(aliased - {None})
    result.outputs, result.written = result.outputs[skipped:], result.written[skipped:]
    for operand, written in zip(spec.outputs, result.written, strict=True):
        if not written.all():
            raise UnwrittenError(f"{code.kernel.name} leaves {int((~written).sum())} bytes of {operand.name} unwritten")
    return result


def _shift(shift: int | Mapping[str, int], name: str, rank: int) -> int:
    if isinstance(shift, int):
        return shift if rank > 1 else 0
    return shift.get(name, 0)
