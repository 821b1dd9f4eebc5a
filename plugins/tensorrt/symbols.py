"""Symbolic sizes: dimensions that are not known yet, in names of a graph or in TensorRT's expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Arithmetic:
    """How a kind of expression is made from an int, added and subtracted."""

    constant: Callable[[int], Any]
    add: Callable[[Any, Any], Any]
    subtract: Callable[[Any, Any], Any]


# Names of dimensions, as ONNX graphs have them: the sum of "S" and "E" is "S+E".
NAMES = Arithmetic(str, lambda a, b: f"{a}+{b}", lambda a, b: f"{a}-{b}")


@dataclass(frozen=True)
class Symbol:
    """A size that is not known yet; adds and subtracts with ints and its like."""

    value: Any
    arithmetic: Arithmetic

    def __add__(self, other: int | Symbol) -> Symbol:
        if isinstance(other, int) and other == 0:
            return self
        return Symbol(self.arithmetic.add(self.value, self._lift(other)), self.arithmetic)

    def __radd__(self, other: int) -> Symbol:
        return self + other

    def __sub__(self, other: int | Symbol) -> Symbol:
        if isinstance(other, int) and other == 0:
            return self
        return Symbol(self.arithmetic.subtract(self.value, self._lift(other)), self.arithmetic)

    def __rsub__(self, other: int) -> Symbol:
        return Symbol(self.arithmetic.subtract(self._lift(other), self.value), self.arithmetic)

    def _lift(self, other: int | Symbol) -> Any:
        return other.value if isinstance(other, Symbol) else self.arithmetic.constant(other)
