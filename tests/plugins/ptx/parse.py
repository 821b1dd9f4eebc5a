"""Reads a PTX file: statements end in ``;``, and ``{`` opens a scope where no operand stands."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field

from .errors import UnsupportedPtxError
from .syntax import (
    SPECIAL,
    WIDTHS,
    Address,
    Guard,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Module,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    number,
    variable,
)

_IGNORED = re.compile(r"\.(version \d+\.\d+|target sm_\d+\w*|address_size 64)")
_SPACE = re.compile(r"\s+")
_LIMITS = {"maxntid", "reqntid", "minnctapersm", "reqnctapercluster", "explicitcluster"}
_ENTRY = re.compile(r"\.visible\s+\.entry\s+([\w$]+)\s*\(([^)]*)\)")
_VARIABLE = re.compile(r"(\.(?:global|const)[^;]*);")
_LIMIT = re.compile(r"\.(\w+)((?:\s+\d+(?:\s*,\s*\d+)*)?)(?=\s*[.{])")
_OPEN, _CLOSE, _LABEL, _STATEMENT = map(re.compile, (r"\{", r"\}", r"([\w$]+):", r"([^;]+);"))
_INSTRUCTION = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_NUMBERED = re.compile(r"(%[A-Za-z_]+)(\d+)")
_ADDRESS = re.compile(r"\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*")
_OPERANDS = re.compile(r"(?:\{[^}]*\}|[^,{])+")
_PARAMETER = re.compile(r"\.param\s+\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)?\.align\s+\d+\s+)?([\w$]+)")


def parse(text: str) -> Module:
    """Read the whole file. Raises ``UnsupportedPtxError`` with the line of what it does not know."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    return _Reader(plain).module()


@dataclass
class _Scope:
    """The registers of a ``{}``: by name, and by prefix for ``%r<10>``. ``mark`` makes nested names unique."""

    mark: str
    single: dict[str, Register] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.scopes, self.opened = text, 0, list[_Scope](), 0
        self.kernel = Kernel("", 0)
        self.ends = [match.start() for match in re.finditer("\n", text)]

    def line(self) -> int:
        return bisect.bisect_left(self.ends, self.at) + 1

    def refuse(self, what: str) -> UnsupportedPtxError:
        return UnsupportedPtxError(f"{self.kernel.name or 'the file'}, line {self.line()}: {what}")

    def skip(self) -> None:
        if match := _SPACE.match(self.text, self.at):
            self.at = match.end()

    def take(self, form: re.Pattern[str]) -> re.Match[str] | None:
        self.skip()
        if match := form.match(self.text, self.at):
            self.at = match.end()
        return match

    def module(self) -> Module:
        module = Module()
        self.skip()
        while self.at < len(self.text):
            if match := self.take(_ENTRY):
                self.kernel = Kernel(match[1], self.line(), self.parameters(match[2]))
                self.limits()
                self.body()
                module.kernels[match[1]] = self.kernel
                self.kernel = Kernel("", 0)
            elif (match := self.take(_VARIABLE)) and (found := variable(match[1], self.line())):
                module.variables[found.name] = found
            elif not self.take(_IGNORED):
                raise self.refuse(f"unknown directive {self.text[self.at : self.at + 40].splitlines()[0]!r}")
            self.skip()
        return module

    def parameters(self, text: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for each in filter(None, map(str.strip, text.split(","))):
            match = _PARAMETER.fullmatch(each)
            if match is None or match[1] not in WIDTHS:
                raise self.refuse(f"unknown parameter {each!r}")
            found[match[2]] = WIDTHS[match[1]] // 8
        return found

    def limits(self) -> None:
        while match := self.take(_LIMIT):
            if match[1] not in _LIMITS:
                raise self.refuse(f"unknown directive .{match[1]}")
            self.kernel.limits[match[1]] = tuple(map(int, re.findall(r"\d+", match[2])))

    def body(self) -> None:
        if not self.take(_OPEN):
            raise self.refuse("a kernel without a body")
        self.scopes = [_Scope("")]
        while self.scopes:
            self.statement()

    def statement(self) -> None:
        if self.take(_OPEN):
            self.opened += 1
            self.scopes.append(_Scope(f"#{self.opened}"))
        elif self.take(_CLOSE):
            self.scopes.pop()
        elif match := self.take(_LABEL):
            self.kernel.body.append(Label(self.line(), match[1]))
        elif match := self.take(_STATEMENT):
            self.at, end = match.start(), self.at  # messages name the line in which the statement begins
            self.directive(match[1]) if match[1].startswith(".") else self.instruction(match[1])
            self.at = end
        else:
            raise self.refuse("the text ends inside a kernel")

    def directive(self, text: str) -> None:
        if match := re.fullmatch(r"\.reg\s+\.(\w+)\s+(.+)", text, re.DOTALL):
            bits = 1 if match[1] == "pred" else WIDTHS.get(match[1], 0)
            for name in map(str.strip, match[2].split(",")):
                if bits < 1 or bits == 8:
                    raise self.refuse(f"register of type .{match[1]}")
                if several := re.fullmatch(r"(%[A-Za-z_]+)<(\d+)>", name):
                    self.scopes[-1].ranges[several[1]] = (int(several[2]), bits)
                else:
                    self.scopes[-1].single[name] = Register(name + self.scopes[-1].mark, bits)
        elif found := variable(text, self.line()):
            self.kernel.variables[found.name] = found
        elif not re.fullmatch(r'\.pragma\s+"nounroll"', text):
            raise self.refuse(f"unknown directive {text!r}")

    def instruction(self, text: str) -> None:
        match = _INSTRUCTION.fullmatch(text.strip())
        if match is None:
            raise self.refuse(f"not an instruction: {text!r}")
        guard = None
        if match[2]:
            register = self.register(match[2])
            if register is None or register.bits != 1:
                raise self.refuse(f"{match[2]} is not a predicate")
            guard = Guard(register, match[1] == "!")
        operands = tuple(self.operand(each) for each in split(match[4]))
        self.kernel.body.append(Instruction(self.line(), match[3], operands, guard))

    def register(self, name: str) -> Register | None:
        for scope in reversed(self.scopes):
            if name in scope.single:
                return scope.single[name]
            match = _NUMBERED.fullmatch(name)
            if match and match[1] in scope.ranges:
                count, bits = scope.ranges[match[1]]
                if int(match[2]) < count:
                    return scope.single.setdefault(name, Register(name + scope.mark, bits))
        return None

    def operand(self, text: str) -> Operand:
        if text == "_":
            return Sink()
        if text.startswith("{") and text.endswith("}"):
            return Vector(tuple(self.operand(each) for each in split(text[1:-1])))
        if text.startswith("[") and text.endswith("]"):
            return self.address(text[1:-1])
        if found := number(text) or self.register(text):
            return found
        if SPECIAL.fullmatch(text):
            return Special(text)
        first, bar, second = text.partition("|")
        if bar and (value := self.register(first)) and (predicate := self.register(second)):
            return Pair(value, predicate)
        if re.fullmatch(r"[A-Za-z_$][\w$]*", text):
            return Symbol(text)
        raise self.refuse(f"unknown operand {text!r}")

    def address(self, text: str) -> Address:
        match = _ADDRESS.fullmatch(text)
        offset = number(match[2] or "0") if match else None
        base = self.operand(match[1]) if match else None
        if offset is None or not isinstance(base, Register | Symbol | Immediate):
            raise self.refuse(f"unknown address [{text}]")
        return Address(base, offset.bits)


def split(text: str) -> list[str]:
    """Split operands at the commas outside of braces."""
    return [each.strip() for each in _OPERANDS.findall(text) if each.strip()]
