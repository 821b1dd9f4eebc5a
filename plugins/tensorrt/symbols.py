"""Symbolic sizes: unknown dimensions, as names in a graph or as TensorRT expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of one kind of expression: conversion from int, addition, subtraction."""

    constant: Callable[[int], Any]
    add: Callable[[Any, Any], Any]
    subtract: Callable[[Any, Any], Any]


# Dimension names as in ONNX graphs: the sum of "S" and "E" is "S+E".
NAMES = Arithmetic(str, lambda a, b: f"{a}+{b}", lambda a, b: f"{a}-{b}")


@dataclass(frozen=True)
class Symbol:
    """An unknown size; adds and subtracts with ints and other symbols."""

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
