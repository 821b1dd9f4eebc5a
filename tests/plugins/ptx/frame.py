"""Registers, and how an instruction reads its operands and writes its results for the lanes that execute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import UnsupportedPtxError
from .memory import Site
from .operations import DTYPES, Array
from .syntax import Immediate, Operand, Register, Sink, Special, Symbol
from .threads import Threads

UNSET = {1: False, 16: 0xCDCD, 32: 0xCDCDCDCD, 64: 0xCDCDCDCDCDCDCDCD}  # what registers hold before the first write
_STORED: dict[int, Any] = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}

Reader = Callable[["Frame"], Array]
Writer = Callable[["Frame", Array], None]
Step = Callable[["Frame"], None]


class Registers:
    """All registers of all lanes, by name; an array [lanes] each, unsigned or bool."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.values: dict[Register, Array] = {}

    def of(self, register: Register) -> Array:
        """Return the register's numbers; those that nothing wrote have a pattern that stands out."""
        if register not in self.values:
            self.values[register] = np.full(self.count, UNSET[register.bits], _STORED[register.bits])
        return self.values[register]


class Frame:
    """One run of a basic block by some lanes: their registers are gathered when read and scattered at the end."""

    def __init__(self, machine: Any, lanes: Array) -> None:
        self.machine, self.lanes = machine, lanes
        self.registers: Registers = machine.registers
        self.threads: Threads = machine.threads
        self.whole = len(lanes) == self.registers.count
        self.values: dict[Register, Array] = {}

    def get(self, register: Register) -> Array:
        """Return the register of these lanes."""
        found = self.values.get(register)
        if found is None:
            every = self.registers.of(register)
            found = self.values[register] = every if self.whole else every[self.lanes]
        return found

    def commit(self, escaping: set[Register]) -> None:
        """Keep what later blocks read."""
        for register, values in self.values.items():
            if register not in escaping:
                continue
            if self.whole:
                self.registers.values[register] = values
            else:
                self.registers.of(register)[self.lanes] = values

    def site(self, line: int) -> Site:
        """Return the lanes that execute the instruction of that line."""
        return Site(self.machine.kernel.name, line, self.threads, self.lanes)


def _special(name: str) -> Reader:
    def constant(value: Callable[[Any], int]) -> Reader:
        return lambda frame: np.full(len(frame.lanes), value(frame.machine), np.uint32)

    def each(value: Callable[[Threads], Array]) -> Reader:
        return lambda frame: value(frame.threads)[frame.lanes].astype(np.uint32)

    readers: dict[str, Reader] = {
        "%tid.x": each(lambda threads: threads.thread),
        "%ctaid.x": each(lambda threads: threads.block),
        "%laneid": each(lambda threads: threads.lane),
        "%cluster_ctarank": each(lambda threads: threads.rank),
        "%ntid.x": constant(lambda machine: int(machine.shape.block)),
        "%nctaid.x": constant(lambda machine: int(machine.shape.grid)),
        "%cluster_nctarank": constant(lambda machine: int(machine.shape.cluster)),
    }
    readers |= {f"%{kind}.{axis}": constant(lambda _: 0) for kind in ("tid", "ctaid") for axis in "yz"}
    readers |= {f"%{kind}.{axis}": constant(lambda _: 1) for kind in ("ntid", "nctaid") for axis in "yz"}
    return readers[name]


def pattern(constant: Immediate, kind: str, line: int) -> Any:
    """Return a constant as a number of that type."""
    dtype = DTYPES[kind]
    if constant.kind != "int" and (kind[0] not in "fb" or dtype.itemsize * 8 != int(constant.kind[1:])):
        raise UnsupportedPtxError(f"line {line}: a constant .{constant.kind} as .{kind}")
    if kind == "pred":
        return np.bool_(constant.bits != 0)
    if constant.kind == "int" and dtype.kind == "f":
        raise UnsupportedPtxError(f"line {line}: an integer constant as .{kind}")
    bits = constant.bits % (1 << 8 * dtype.itemsize)
    return np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]


def reader(operand: Operand, kind: str, line: int) -> Reader:
    """Return the function that reads an operand as that type. A wider register gives its lower bits."""
    dtype = DTYPES[kind]
    if isinstance(operand, Register):
        if (operand.bits == 1) != (kind == "pred") or (operand.bits < min(dtype.itemsize * 8, 64) and kind != "pred"):
            raise UnsupportedPtxError(f"line {line}: {operand.name} of {operand.bits} bits as .{kind}")
        if kind == "pred":
            return lambda frame: frame.get(operand)
        if operand.bits == dtype.itemsize * 8:
            return lambda frame: frame.get(operand).view(dtype)
        if dtype.kind == "f":
            raise UnsupportedPtxError(f"line {line}: {operand.name} of {operand.bits} bits as .{kind}")
        unsigned = np.dtype(f"u{dtype.itemsize}")
        return lambda frame: frame.get(operand).astype(unsigned).view(dtype)
    if isinstance(operand, Immediate):
        value = pattern(operand, kind, line)
        return lambda frame: np.full(len(frame.lanes), value, dtype)
    if isinstance(operand, Special) and dtype.itemsize == 4 and dtype.kind in "iu":
        of = _special(operand.name)
        return lambda frame: of(frame).view(dtype)
    if isinstance(operand, Symbol) and dtype.itemsize in (4, 8) and dtype.kind == "u":
        return lambda frame: np.full(len(frame.lanes), frame.machine.address(operand.name, line), dtype)
    raise UnsupportedPtxError(f"line {line}: operand {operand} as .{kind}")


def writer(operand: Operand, kind: str, line: int) -> Writer:
    """Return the function that writes a result of that type. A wider register is filled by zeros or by the sign."""
    dtype = DTYPES[kind]
    if isinstance(operand, Sink):
        return lambda frame, values: None
    if not isinstance(operand, Register) or (operand.bits == 1) != (kind == "pred"):
        raise UnsupportedPtxError(f"line {line}: result {operand} of type .{kind}")
    stored = np.dtype(_STORED[operand.bits])
    if kind != "pred" and operand.bits < dtype.itemsize * 8:
        raise UnsupportedPtxError(f"line {line}: {operand.name} of {operand.bits} bits for .{kind}")
    if kind == "pred" or operand.bits == dtype.itemsize * 8:

        def write(frame: Frame, values: Array) -> None:
            frame.values[operand] = values.view(stored)

        return write
    if dtype.kind == "f":
        raise UnsupportedPtxError(f"line {line}: {operand.name} of {operand.bits} bits for .{kind}")
    extended = np.dtype(f"{dtype.kind}{stored.itemsize}")

    def extend(frame: Frame, values: Array) -> None:
        frame.values[operand] = values.astype(extended).view(stored)

    return extend
