"""The text of PTX as data: kernels, their declarations and instructions. What is not known is refused with its line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .errors import UnsupportedPtxError

WIDTHS = {f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)} | {"f16": 16, "f32": 32, "f64": 64}
_NUMBER = re.compile(r"0[fF](?P<f32>[\da-fA-F]{8})|0[dD](?P<f64>[\da-fA-F]{16})|(?P<int>-?(?:0[xX][\da-fA-F]+|\d+))U?")
SPECIAL = re.compile(r"%(?:(?:n?tid|n?ctaid)\.[xyz]|laneid|cluster_n?ctarank)")


@dataclass(frozen=True, eq=False)
class Register:
    """A register; ``bits`` is 1 for a predicate. A kernel has one object for each, which is quick to look up."""

    name: str
    bits: int


@dataclass(frozen=True)
class Special:
    """A register that the machine sets, such as ``%tid.x``."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant. ``bits`` is its pattern; ``kind`` is ``int``, ``f32`` or ``f64``."""

    bits: int
    kind: str


@dataclass(frozen=True)
class Symbol:
    """The address of a variable."""

    name: str


@dataclass(frozen=True)
class Address:
    """``[base + offset]``."""

    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True)
class Vector:
    """``{a, b}``."""

    parts: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``value|predicate``, the two results of a shuffle."""

    value: Register
    predicate: Register


@dataclass(frozen=True)
class Sink:
    """``_``: a result that is dropped."""


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Sink


@dataclass(frozen=True)
class Guard:
    """``@p`` or ``@!p``."""

    register: Register
    negated: bool


@dataclass(frozen=True)
class Instruction:
    """One instruction: ``opcode`` with all its modifiers, ``add.s32``."""

    line: int
    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None = None


@dataclass(frozen=True)
class Label:
    """A place that branches name."""

    line: int
    name: str


@dataclass(frozen=True)
class Variable:
    """A variable in memory: its size and alignment in bytes, and its first bytes if it is initialized."""

    name: str
    space: str
    align: int
    size: int
    initial: bytes | None = None


@dataclass
class Kernel:
    """An entry point. ``parameters`` are names with widths in bytes, in order; ``limits`` are its launch directives."""

    name: str
    line: int
    parameters: dict[str, int] = field(default_factory=dict)
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    body: list[Instruction | Label] = field(default_factory=list)


@dataclass
class Module:
    """A PTX file."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)


def number(text: str) -> Immediate | None:
    """Read a constant; None for anything else."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if match["f32"] or match["f64"]:
        return Immediate(int(match["f32"] or match["f64"], 16), "f32" if match["f32"] else "f64")
    return Immediate(int(match["int"], 0), "int")


def variable(words: str, line: int) -> Variable | None:
    """Read ``.shared .align 16 .b8 name[64]`` or ``.global .align 4 .u32 name = 5``; None for anything else."""
    form = r"\.(global|shared|local|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$.]+)(?:\[(\d+)\])?(?:\s*=\s*(\S+))?"
    match = re.fullmatch(form, words)
    if match is None:
        return None
    space, align, kind, name, count, initial = match.groups()
    if kind not in WIDTHS:
        raise UnsupportedPtxError(f"line {line}: variable of type .{kind}")
    width = WIDTHS[kind] // 8
    content = None
    if initial is not None:
        value = number(initial)
        if value is None or count is not None:
            raise UnsupportedPtxError(f"line {line}: initializer {initial}")
        content = (value.bits % (1 << 8 * width)).to_bytes(width, "little")
    return Variable(name, space, int(align or width), width * int(count or 1), content)
