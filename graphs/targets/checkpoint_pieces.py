"""The sources of a graph's weights in a checkpoint: which tensors each consists of, and whether all are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ...plugins.errors import BuildError
from . import Family, Piece

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]
Reader = Callable[[str], Iterator[Array]]

_LISTED = 20


class Sources:
    """The weights of one target: ``stored`` are the checkpoint's tensors under the names of its files."""

    def __init__(self, family: Family, config: Mapping[str, Any], stored: Mapping[str, Shape]) -> None:
        self.family, self.stored = family, stored
        self.tied = family.tied(config)
        self._keys = {family.canonical(key): key for key in stored}

    def pieces(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """The pieces of the graph weight ``name``; of a tied one those that it is tied to."""
        return self.family.sources(self.tied.get(name, name), shape)

    def key(self, canonical: str) -> str:
        """The name of a tensor in the files; itself when it is not there."""
        return self._keys.get(canonical, canonical)

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """Raise one ``BuildError`` that lists every tensor missing, of another shape, or not known to the model."""
        expectation: dict[str, Shape] = {}
        for name, shape in shapes.items():
            pieces = self.pieces(name, shape)
            expectation |= {self.key(k): _stored_shape(p, shape) for p in pieces for k in p.keys}
        unused = {self.key(name) for name in self.tied}
        absent = [f"{key} {list(shape)}" for key, shape in expectation.items() if key not in self.stored]
        wrong = [
            f"{key} is {list(self.stored[key])}, must be {list(shape)}"
            for key, shape in expectation.items()
            if key in self.stored and tuple(self.stored[key]) != shape
        ]
        extra = [
            f"{key} {list(shape)}"
            for key, shape in self.stored.items()
            if key not in expectation and key not in unused and not self.family.ignored(key)
        ]
        kinds = (("missing", absent), ("of another shape", wrong), ("not known to the model", extra))
        if absent or wrong or extra:
            raise BuildError(
                "the checkpoint is not what its config.json describes:\n"
                + "\n".join(line for kind, items in kinds if items for line in _listed(kind, items)),
                why="a model with other tensors than its own would compute something else",
                fix="use the config.json that belongs to these weights, and finish the download of the model",
            )

    def read(self, name: str, shape: Shape, read: Reader) -> Iterator[Array]:
        """The weight's values as consecutive runs of rows, put together from ``read(key)``'s."""
        for piece in self.pieces(name, shape):
            yield from _assembled(piece, [read(self.key(key)) for key in piece.keys])


def _assembled(piece: Piece, parts: list[Iterator[Array]]) -> Iterator[Array]:
    if piece.how == "interleave":
        for gate, up in zip(*parts, strict=True):
            yield np.stack((gate, up), axis=1).reshape(-1, *gate.shape[1:])
    elif piece.how == "transpose":
        for rows in parts[0]:
            yield np.ascontiguousarray(rows.swapaxes(1, 2))
    else:
        yield from parts[0]


def _stored_shape(piece: Piece, shape: Shape) -> Shape:
    """The shape of each tensor of ``piece`` in a weight of ``shape``."""
    part = shape[1:] if piece.how in ("stack", "interleave") else shape
    if piece.how == "interleave":
        return (part[0] // 2, *part[1:])
    return (part[0], part[2], part[1]) if piece.how == "transpose" else part


def _listed(kind: str, items: list[str]) -> list[str]:
    more = [f"      and {len(items) - _LISTED} more"] if len(items) > _LISTED else []
    return [f"    {len(items)} {kind}:", *[f"      {item}" for item in items[:_LISTED]], *more]
