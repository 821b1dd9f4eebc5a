"""Checks of an op call and its attributes, before TensorRT sees them.

TensorRT validates almost nothing of a plugin: a wrong rank crashes the process, a wrong output dtype goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import BuildError
from ..op_spec import DOMAIN, SELECTION, OpSpec
from .symbols import NAMES, Symbol

_INT32 = range(-(2**31), 2**31)


def check_call(
    spec: OpSpec,
    attributes: Mapping[str, Any],
    dtypes: Sequence[str | None],
    shapes: Sequence[Sequence[int | str] | None],
) -> list[tuple[str, tuple[int | str, ...]]]:
    """Return the dtype and shape of every output of one call. Raises ``BuildError`` naming all problems.

    ``attributes`` are those of the node, with or without the two that select a plugin. ``dtypes`` and ``shapes`` are in
    input order; dimensions are sizes or names. A dtype of None is an absent input. A shape of None is unknown; its
    dimensions are inferred from the other inputs where possible.
    """
    values = check_attributes(spec, attributes)
    output_dtypes = spec.infer_dtypes(dtypes)
    symbolic = [
        None if dtype is None else _symbols(operand.dims if shape is None else shape)
        for operand, dtype, shape in zip(spec.inputs, dtypes, shapes, strict=False)
    ]
    inferred = spec.infer_shapes(symbolic, values)
    return [
        (dtype, tuple(size.value if isinstance(size, Symbol) else size for size in shape))
        for dtype, shape in zip(output_dtypes, inferred, strict=True)
    ]


def check_attributes(spec: OpSpec, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's attributes with defaults filled in. Raises ``BuildError`` naming all problems."""
    for name, mark in SELECTION.items():
        if attributes.get(name, mark) != mark:
            raise BuildError(
                f"{spec.name}: {name} is {attributes[name]!r}, but the plugin has {mark!r}",
                why="TensorRT would silently use the slow function body instead of the plugin",
                fix="export the graph again with this version",
            )
    op_attributes = {name: value for name, value in attributes.items() if name not in SELECTION}
    absent = [a.name for a in spec.attributes if a.name not in op_attributes and a.check and a.check(a.default)]
    if absent:
        raise BuildError(
            f"{spec.name}: {', '.join(absent)} must be given",
            fix=f"set these attributes as in the spec of {DOMAIN}::{spec.name}",
        )
    values = spec.check_attributes(op_attributes)
    for name in spec.kernel.scalars if spec.kernel else ():
        if values.get(name, 0) not in _INT32:
            raise BuildError(
                f"{spec.name}: {name} is {values[name]}, but its kernel takes 32-bit integers",
                fix="use a value that fits in 32 bits",
            )
    return values


def bind(spec: OpSpec, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the size of every dimension that the inputs name. The shapes must have been checked."""
    return {
        name: size
        for operand, shape in zip(spec.inputs, shapes, strict=True)
        for name, size in zip(operand.dims, shape, strict=True)
    }


def _symbols(shape: Sequence[int | str]) -> tuple[int | Symbol, ...]:
    return tuple(size if isinstance(size, int) else Symbol(size, NAMES) for size in shape)
