"""Instructions that touch memory: loads, stores, atomics, and those that convert addresses."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .errors import UnsupportedPtxError
from .frame import Frame, Reader, Step, reader, writer
from .operations import COMBINE, DTYPES, Array
from .spaces import from_generic, locate, map_shared, to_generic
from .syntax import Address, Instruction, Register, Sink, Symbol, Vector

_LOAD = re.compile(
    r"ld(?:\.(?P<space>global|const|shared|shared::cta|shared::cluster|local))?(?P<nc>\.nc)?(?:\.L1::no_allocate)?"
    r"(?:\.v(?P<count>[24]))?\.(?P<type>[bus](?:8|16|32|64)|f32|f64)"
)
_STORE = re.compile(
    r"st(?:\.(?P<space>global|shared|shared::cta|shared::cluster|local))?"
    r"(?:\.v(?P<count>[24]))?\.(?P<type>[bus](?:8|16|32|64)|f32|f64)"
)
_ATOMIC = re.compile(
    r"(?P<op>atom|red)(?:\.relaxed)?(?:\.(?:cluster|gpu|sys))?"
    r"(?:\.(?P<space>global|shared|shared::cta|shared::cluster))?(?:\.(?:cluster|gpu|sys))?"
    r"\.(?P<do>add|min|max|and|or|xor|exch|cas)\.(?P<type>[bus](?:32|64))"
)
_ADDRESS = re.compile(r"(?:cvta(?P<to>\.to)?\.(?P<space>global|const|shared|local)|mapa\.shared::cluster)\.u(32|64)")


def _space(name: str | None) -> str:
    return {"shared::cta": "shared", None: "generic"}.get(name, name or "")


def address_of(operand: object, line: int) -> Reader:
    """Return the function that computes ``[base + offset]``, as uint64."""
    if not isinstance(operand, Address):
        raise UnsupportedPtxError(f"line {line}: {operand} is no address")
    base = operand.base
    if isinstance(base, Register) and base.bits == 32:
        narrow, small = reader(base, "u32", line), np.uint32(operand.offset % 2**32)
        return lambda frame: (narrow(frame) + small).astype(np.uint64)
    of, offset = reader(base, "u64", line), np.uint64(operand.offset % 2**64)
    return lambda frame: of(frame) + offset


def parameter(instruction: Instruction, kind: str) -> Step:
    """Return the step of ``ld.param``: all lanes get the launch's argument."""
    to, address = instruction.operands
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        raise UnsupportedPtxError(f"line {instruction.line}: parameter {address}")
    name, offset, line = address.base.name, address.offset, instruction.line
    put, dtype = writer(to, kind, line), DTYPES[kind]

    def step(frame: Frame) -> None:
        put(frame, np.full(len(frame.lanes), frame.machine.parameter(name, offset, dtype, line), dtype))

    return step


def load(instruction: Instruction, match: re.Match[str]) -> Step:
    """Return the step of a load; a vector has 2 or 4 results."""
    to, address = instruction.operands
    kind, count, line = match["type"], int(match["count"] or 1), instruction.line
    parts = to.parts if isinstance(to, Vector) else (to,)
    if len(parts) != count or (match["nc"] and match["space"] != "global"):
        raise UnsupportedPtxError(f"line {line}: {instruction.opcode} of {len(parts)} results")
    put, at, space = [writer(part, kind, line) for part in parts], address_of(address, line), _space(match["space"])
    dtype, forever = DTYPES[kind], bool(match["nc"])

    def step(frame: Frame) -> None:
        site, width = frame.site(line), dtype.itemsize
        values = np.empty((len(frame.lanes), count), f"u{width}")
        for memory, index, offset in locate(frame, space, at(frame), width * count, site):
            part = site if len(index) == len(frame.lanes) else site.of(index)
            values[index] = memory.load(offset, width, count, part, forever)
        for i, write in enumerate(put):
            write(frame, np.ascontiguousarray(values[:, i]).view(dtype))

    return step


def store(instruction: Instruction, match: re.Match[str]) -> Step:
    """Return the step of a store."""
    address, source = instruction.operands
    kind, count, line = match["type"], int(match["count"] or 1), instruction.line
    parts = source.parts if isinstance(source, Vector) else (source,)
    if len(parts) != count:
        raise UnsupportedPtxError(f"line {line}: {instruction.opcode} of {len(parts)} values")
    get, at, space = [reader(part, kind, line) for part in parts], address_of(address, line), _space(match["space"])
    width = DTYPES[kind].itemsize

    def step(frame: Frame) -> None:
        site = frame.site(line)
        values = np.stack([read(frame).view(f"u{width}") for read in get], axis=1)
        for memory, index, offset in locate(frame, space, at(frame), width * count, site):
            part = site if len(index) == len(frame.lanes) else site.of(index)
            memory.store(offset, values[index], part)

    return step


def atomic(instruction: Instruction, match: re.Match[str], reads: set[Register]) -> Step:
    """Return the step of an atomic. Lanes take turns in their order; old values cost a loop, where any are read."""
    operands, line, do = list(instruction.operands), instruction.line, match["do"]
    to = operands.pop(0) if match["op"] == "atom" else Sink()
    kind, dtype = match["type"], DTYPES[match["type"]]
    if len(operands) != (3 if do == "cas" else 2):
        raise UnsupportedPtxError(f"line {line}: {instruction.opcode} of {len(operands)} operands")
    at, space = address_of(operands[0], line), _space(match["space"])
    get = [reader(operand, kind, line) for operand in operands[1:]]
    silent = do in COMBINE and (isinstance(to, Sink) or to not in reads)
    put = writer(Sink() if silent else to, kind, line)

    def step(frame: Frame) -> None:
        site, values = frame.site(line), [read(frame) for read in get]
        old = np.empty(len(frame.lanes), dtype)
        for memory, index, offset in locate(frame, space, at(frame), dtype.itemsize, site):
            part = site if len(index) == len(frame.lanes) else site.of(index)
            memory.update(offset, dtype.itemsize, _change(do, silent, [v[index] for v in values], old, index), part)
        put(frame, old)

    return step


def _change(do: str, silent: bool, values: list[Array], old: Array, index: Array) -> Callable[[Array, Array], None]:
    def together(cells: Array, where: Array) -> None:
        COMBINE[do].at(cells.view(old.dtype), where, values[0])

    def one_by_one(cells: Array, where: Array) -> None:
        typed = cells.view(old.dtype)
        for i, cell in enumerate(where):
            before = old[index[i]] = typed[cell]
            if do == "exch":
                typed[cell] = values[0][i]
            elif do == "cas":
                typed[cell] = values[1][i] if before == values[0][i] else before
            else:
                typed[cell] = COMBINE[do](before, values[0][i])

    return together if silent else one_by_one


def convert_address(instruction: Instruction, match: re.Match[str]) -> Step:
    """Return the step of ``cvta``, ``cvta.to`` or ``mapa``."""
    line, kind = instruction.line, f"u{match[3]}"
    put, get = writer(instruction.operands[0], kind, line), reader(instruction.operands[1], kind, line)
    space = match["space"]
    if space is None:
        rank = reader(instruction.operands[2], "u32", line)
        return lambda frame: put(frame, map_shared(frame, get(frame), rank(frame), frame.site(line)))
    if kind != "u64":
        raise UnsupportedPtxError(f"line {line}: {instruction.opcode} of 32 bits")
    if match["to"]:
        return lambda frame: put(frame, from_generic(space, get(frame), frame.site(line)))
    return lambda frame: put(frame, to_generic(space, get(frame)))


def memory_step(instruction: Instruction, reads: set[Register]) -> Step | None:
    """Return the step of an instruction of this file, None for any other."""
    opcode = instruction.opcode
    if match := re.fullmatch(r"ld\.param\.(\w+)", opcode):
        if match[1] not in DTYPES or match[1] == "pred":
            return None
        return parameter(instruction, match[1])
    if match := _LOAD.fullmatch(opcode):
        return load(instruction, match)
    if match := _STORE.fullmatch(opcode):
        return store(instruction, match)
    if match := _ATOMIC.fullmatch(opcode):
        return atomic(instruction, match, reads)
    if match := _ADDRESS.fullmatch(opcode):
        return convert_address(instruction, match)
    return None
