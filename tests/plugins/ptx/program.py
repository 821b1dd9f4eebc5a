"""A kernel ready to run: every instruction of every block as a function of the lanes that execute it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from . import conversions, floats, integers
from .access import memory_step
from .errors import InvalidOperand, PtxError, Undefined, UnsupportedPtxError
from .flow import Block, blocks_of
from .frame import Frame, Reader, Step, reader, writer
from .operations import DTYPES, Array, Operation
from .syntax import Address, Guard, Instruction, Kernel, Module, Operand, Pair, Register, Vector
from .warps import warp_step

OPERATIONS = integers.table() | floats.table() | conversions.table()
_BARRIER = re.compile(r"(?:bar\.sync|barrier\.sync(?:\.aligned)?|barrier\.cta\.sync(?:\.aligned)?)")
_ARRIVE = re.compile(r"barrier\.cluster\.arrive(?:\.release)?")
_WAIT = re.compile(r"barrier\.cluster\.wait(?:\.acquire)?")
_COLLECTIVE = re.compile(r"(?:shfl|redux|vote)\.sync\..*")


@dataclass(frozen=True)
class Gate:
    """A block's instruction that waits: ``kind`` is ``warp``, ``block``, ``arrive`` or ``wait``.

    ``mask`` reads who must come to a warp's; ``orders`` says that it orders memory. ``barrier`` is the number of a
    block's; if it is ``aligned``, the lanes of a warp come to the same instruction.
    """

    kind: str
    line: int
    opcode: str
    mask: Reader | None = None
    barrier: int = 0
    aligned: bool = True
    orders: bool = False


@dataclass(frozen=True)
class Code:
    """A basic block: its steps, then the branch to ``target`` if the guard holds, else to ``next``."""

    steps: tuple[Step, ...]
    line: int
    gate: Gate | None
    guard: Guard | None
    target: int | None
    next: int | None


@dataclass(frozen=True)
class Program:
    """A kernel with its code; ``escaping`` are the registers that a block other than their writer's reads."""

    module: Module
    kernel: Kernel
    code: tuple[Code, ...]
    escaping: set[Register]


def program_of(module: Module, name: str) -> Program:
    """Make a kernel ready. Raises ``UnsupportedPtxError`` with the line of what the interpreter does not know."""
    if name not in module.kernels:
        raise UnsupportedPtxError(f"no kernel {name}; there are {', '.join(module.kernels)}")
    kernel = module.kernels[name]
    blocks = blocks_of(kernel)
    reads, escaping = set[Register](), set[Register]()
    for block in blocks:
        written = set[Register]()
        for instruction in block.body:
            taken, given = uses(instruction)
            reads |= taken
            escaping |= taken - written
            written |= given
        if block.guard and block.guard.register not in written:
            escaping.add(block.guard.register)
    try:
        code = tuple(_code(block, reads) for block in blocks)
    except PtxError as error:
        raise UnsupportedPtxError(f"{kernel.name}: {error}") from error
    return Program(module, kernel, code, escaping)


def registers_in(operand: Operand) -> set[Register]:
    """Return the registers that an operand names."""
    if isinstance(operand, Register):
        return {operand}
    if isinstance(operand, Address):
        return registers_in(operand.base)
    if isinstance(operand, Vector):
        return set().union(*map(registers_in, operand.parts))
    return {operand.value, operand.predicate} if isinstance(operand, Pair) else set()


def uses(instruction: Instruction) -> tuple[set[Register], set[Register]]:
    """Return the registers that an instruction reads, and those that it writes."""
    first, rest = instruction.operands[:1], instruction.operands[1:]
    if first and (instruction.opcode.startswith(("st.", "red.", "bar")) or isinstance(first[0], Address)):
        first, rest = (), instruction.operands
    taken = set[Register]().union(*map(registers_in, rest))
    return taken, set[Register]().union(*map(registers_in, first))


def _code(block: Block, reads: set[Register]) -> Code:
    gate = _gate(block.body[0]) if block.waits else None
    exchanges = gate is None or (gate.kind == "warp" and not gate.orders)
    steps = tuple(_step(each, reads) for each in block.body) if exchanges else ()
    return Code(steps, block.line, gate, block.guard, block.target, block.next)


def _gate(instruction: Instruction) -> Gate:
    opcode, line, operands = instruction.opcode, instruction.line, instruction.operands
    if _COLLECTIVE.fullmatch(opcode):
        return Gate("warp", line, opcode, reader(operands[-1], "u32", line))
    if opcode == "bar.warp.sync":
        return Gate("warp", line, opcode, reader(operands[0], "u32", line), orders=True)
    if _BARRIER.fullmatch(opcode) and len(operands) == 1:
        number = getattr(operands[0], "bits", None)
        if not isinstance(number, int) or isinstance(operands[0], Register) or not 0 <= number < 16:
            raise UnsupportedPtxError(f"line {line}: barrier {operands[0]}")
        return Gate("block", line, opcode, barrier=number, aligned=opcode == "bar.sync" or "aligned" in opcode)
    if _ARRIVE.fullmatch(opcode) and not operands:
        return Gate("arrive", line, opcode)
    if _WAIT.fullmatch(opcode) and not operands:
        return Gate("wait", line, opcode)
    raise UnsupportedPtxError(f"line {line}: unknown instruction {opcode} with {len(operands)} operands")


def _step(instruction: Instruction, reads: set[Register]) -> Step:
    try:
        step = memory_step(instruction, reads) or warp_step(instruction) or _compute(instruction)
    except ValueError as error:
        raise UnsupportedPtxError(f"line {instruction.line}: operands of {instruction.opcode}: {error}") from error
    return step


def _compute(instruction: Instruction) -> Step:
    opcode, line, operands = instruction.opcode, instruction.line, instruction.operands
    if opcode in ("mov.b32", "mov.b64") and any(isinstance(operand, Vector) for operand in operands):
        return _split_or_join(instruction)
    operation = OPERATIONS.get(opcode)
    if operation is None:
        raise UnsupportedPtxError(f"line {line}: unknown instruction {opcode}")
    if len(operands) != len(operation.sources) + 1:
        raise UnsupportedPtxError(f"line {line}: {opcode} with {len(operands)} operands")
    return _run(operation, instruction)


def _run(operation: Operation, instruction: Instruction) -> Step:
    line = instruction.line
    put = writer(instruction.operands[0], operation.result, line)
    get = [reader(o, kind, line) for o, kind in zip(instruction.operands[1:], operation.sources, strict=True)]
    compute = operation.compute

    def step(frame: Frame) -> None:
        try:
            put(frame, compute(*[read(frame) for read in get]))
        except Undefined as error:
            raise frame.site(line).fault(InvalidOperand, error.at, str(error)) from None

    return step


def _split_or_join(instruction: Instruction) -> Step:
    """Return the step of ``mov.b64 {a, b}, c`` or ``mov.b64 c, {a, b}``; the first part has the lower bits."""
    line, kind = instruction.line, instruction.opcode.removeprefix("mov.")
    to, source = instruction.operands
    whole = DTYPES[kind].itemsize
    vector = to if isinstance(to, Vector) else source
    if not isinstance(vector, Vector) or (isinstance(to, Vector) and isinstance(source, Vector)):
        raise UnsupportedPtxError(f"line {line}: operands of {instruction.opcode}")
    part = f"b{whole * 8 // len(vector.parts)}"
    if part not in ("b16", "b32") or any(isinstance(p, Register) and p.bits != int(part[1:]) for p in vector.parts):
        raise UnsupportedPtxError(f"line {line}: operands of {instruction.opcode}")
    count, dtype = len(vector.parts), DTYPES[part]
    if isinstance(to, Vector):
        puts, get = [writer(p, part, line) for p in vector.parts], reader(source, kind, line)

        def split(frame: Frame) -> None:
            parts = get(frame).view(dtype).reshape(-1, count)
            for i, put in enumerate(puts):
                put(frame, parts[:, i].copy())

        return split
    gets, put = [reader(p, part, line) for p in vector.parts], writer(to, kind, line)

    def join(frame: Frame) -> None:
        put(frame, _stacked([get(frame) for get in gets]).view(DTYPES[kind]).reshape(-1))

    return join


def _stacked(parts: list[Array]) -> Array:
    return np.ascontiguousarray(np.stack(parts, axis=1))
