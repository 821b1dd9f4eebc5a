"""Launch a kernel of a PTX text: places its arguments in memory, checks the launch, runs all blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import LaunchError
from .machine import MAX_STEPS, Machine
from .memory import GlobalMemory
from .operations import Array
from .program import Program
from .threads import Shape

MAX_LANES = 16_384  # threads that run together, but never less than a cluster


@dataclass(frozen=True)
class Input:
    """An array that the kernel may read. ``shift`` bytes move it off its alignment of 16."""

    array: Array
    shift: int = 0


@dataclass(frozen=True)
class Output:
    """An array that the kernel may write. Without ``initial`` content, reading it before writing is a fault."""

    shape: tuple[int, ...]
    dtype: Any
    initial: Array | None = None
    shift: int = 0


Argument = Input | Output | int


@dataclass
class Result:
    """The outputs in order of the arguments; ``written`` says for each of their bytes whether it was; steps taken."""

    outputs: list[Array] = field(default_factory=list)
    written: list[Array] = field(default_factory=list)
    steps: int = 0


def launch(
    program: Program, shape: Shape, arguments: Sequence[Argument], max_steps: int = MAX_STEPS, aliases: Any = None
) -> Result:
    """Run the kernel. ``aliases`` maps the index of an argument to that of the one whose memory it shares.

    Raises ``LaunchError`` for arguments that do not fit, and a ``Fault`` for what no kernel may do.
    """
    kernel = program.kernel
    _require_fit(program, shape, arguments)
    memory = GlobalMemory(shape)
    places: dict[int, int] = {}
    shared = dict(aliases or {})
    for i, argument in enumerate(arguments):
        if i not in shared and not isinstance(argument, int):
            places[i] = _place(memory, argument, f"argument {i}")
    places |= {i: places[j] for i, j in shared.items()}
    values = {
        name: (argument % (1 << 8 * size) if isinstance(argument, int) else places[i]).to_bytes(size, "little")
        for i, ((name, size), argument) in enumerate(zip(kernel.parameters.items(), arguments, strict=True))
    }
    symbols = {
        each.name: memory.add(each.name, each.initial or bytes(each.size), each.align, locked=each.space == "const")
        for each in program.module.variables.values()
    }
    result = Result()
    together = max(MAX_LANES // (shape.block * shape.cluster), 1) * shape.cluster
    for first in range(0, shape.grid, together):
        machine = Machine(program, shape, first, min(together, shape.grid - first), memory, values, symbols, max_steps)
        machine.run()
        result.steps += machine.steps
    for i, argument in enumerate(arguments):
        if isinstance(argument, Output):
            content = np.frombuffer(memory.read(places[i]), argument.dtype)
            result.outputs.append(content.reshape(argument.shape))
            result.written.append(memory.written(places[i]))
    return result


def _place(memory: GlobalMemory, argument: Input | Output, name: str) -> int:
    if isinstance(argument, Input):
        array = np.ascontiguousarray(argument.array)
        return memory.add(name, array.tobytes(), array.itemsize, locked=True, shift=argument.shift)
    size = int(np.prod(argument.shape)) * np.dtype(argument.dtype).itemsize
    content: bytes | int = size if argument.initial is None else np.ascontiguousarray(argument.initial).tobytes()
    return memory.add(name, content, np.dtype(argument.dtype).itemsize, shift=argument.shift)


def _require_fit(program: Program, shape: Shape, arguments: Sequence[Argument]) -> None:
    kernel, limits = program.kernel, program.kernel.limits
    if len(arguments) != len(kernel.parameters):
        raise LaunchError(f"{kernel.name} has {len(kernel.parameters)} parameters, not {len(arguments)}")
    for (name, size), argument in zip(kernel.parameters.items(), arguments, strict=True):
        if size != (4 if isinstance(argument, int) else 8):
            raise LaunchError(f"{kernel.name}: parameter {name} has {size} bytes")
    if shape.block > int(np.prod(limits.get("maxntid", (1024,)))):
        raise LaunchError(f"{kernel.name}: {shape.block} threads to a block are more than it allows")
    if shape.block != int(np.prod(limits.get("reqntid", (shape.block,)))):
        raise LaunchError(f"{kernel.name}: {shape.block} threads to a block are not what it requires")
    if shape.cluster != int(np.prod(limits.get("reqnctapercluster", (shape.cluster,)))):
        raise LaunchError(f"{kernel.name}: clusters of {shape.cluster} blocks are not what it requires")
    if shape.grid % shape.cluster:
        raise LaunchError(f"{kernel.name}: {shape.grid} blocks are no whole clusters of {shape.cluster}")
