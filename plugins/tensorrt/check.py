"""Check a call of an op before TensorRT sees it.

TensorRT validates almost nothing of a plugin: a wrong rank ends the process, a wrong output dtype is taken in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BuildError
from ..spec import DOMAIN, SELECTION, OpSpec

_INT32 = range(-(2**31), 2**31)


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


def check_call(
    spec: OpSpec,
    attributes: Mapping[str, Any],
    dtypes: Sequence[str | None],
    shapes: Sequence[Sequence[int | str] | None],
) -> list[tuple[str, tuple[int | str, ...]]]:
    """Dtype and shape of every output of one call. Raises ``BuildError`` naming all that is wrong with it.

    ``attributes`` are those of the node, with or without the two that select a plugin. ``dtypes`` and ``shapes`` are in
    input order; dimensions are sizes or names. A dtype of None is an absent input; a shape of None is not known, and
    then only what the other inputs tell of its dimensions is used.
    """
    values = check_attributes(spec, attributes)
    given = spec.infer_dtypes(dtypes)
    symbolic = [
        None if dtype is None else _symbols(operand.dims if shape is None else shape)
        for operand, dtype, shape in zip(spec.inputs, dtypes, shapes, strict=False)
    ]
    inferred = spec.infer_shapes(symbolic, values)
    return [
        (dtype, tuple(size.value if isinstance(size, Symbol) else size for size in shape))
        for dtype, shape in zip(given, inferred, strict=True)
    ]


def check_attributes(spec: OpSpec, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a node with defaults filled in. Raises ``BuildError`` naming all that is wrong with them."""
    for name, wanted in SELECTION.items():
        if attributes.get(name, wanted) != wanted:
            raise BuildError(
                f"{spec.name}: {name} is {attributes[name]!r}, the plugin has {wanted!r}",
                why="TensorRT would take the slow function body instead of the plugin, in silence",
                fix="export the graph again with this version",
            )
    given = {name: value for name, value in attributes.items() if name not in SELECTION}
    absent = [a.name for a in spec.attributes if a.name not in given and a.check and a.check(a.default)]
    if absent:
        raise BuildError(
            f"{spec.name}: {', '.join(absent)} must be given", fix=f"see the spec of {DOMAIN}::{spec.name}"
        )
    values = spec.check_attributes(given)
    for name in spec.kernel.scalars if spec.kernel else ():
        if values.get(name, 0) not in _INT32:
            raise BuildError(f"{spec.name}: {name} is {values[name]}, its kernel takes 32-bit numbers")
    return values


def bind(spec: OpSpec, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The size of every dimension that the inputs name. The shapes must have been checked."""
    return {
        name: size
        for operand, shape in zip(spec.inputs, shapes, strict=True)
        for name, size in zip(operand.dims, shape, strict=True)
    }


def _symbols(shape: Sequence[int | str]) -> tuple[int | Symbol, ...]:
    return tuple(size if isinstance(size, int) else Symbol(size, NAMES) for size in shape)
