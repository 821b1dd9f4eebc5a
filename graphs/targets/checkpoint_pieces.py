"""Sources of a graph's weights in a checkpoint: the tensors of each weight, and a check that all are present."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...plugins.errors import BuildError
from . import Family, Piece

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]

_LISTED = 20


@dataclass(frozen=True)
class UnreadRows:
    """Rows of a tensor that are not read yet: their number of values, and the function to read them."""

    size: int
    read: Callable[[], Array]

    @classmethod
    def of(cls, values: Array) -> UnreadRows:
        """Wrap rows that are in memory already."""
        return cls(values.size, lambda: values)


class Sources:
    """The weights of one target: ``stored`` are the checkpoint's tensors under the names of its files."""

    def __init__(self, family: Family, config: Mapping[str, Any], stored: Mapping[str, Shape]) -> None:
        self.family, self.stored = family, stored
        self.tied = family.tied(config)
        self._keys = {family.canonical(key): key for key in stored}

    def pieces(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """Return the pieces of the graph weight ``name``; for a tied one, those of the stored weight."""
        return self.family.sources(self.tied.get(name, name), shape)

    def key(self, canonical: str) -> str:
        """Return the name of a tensor in the files, or the argument if it is absent."""
        return self._keys.get(canonical, canonical)

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """Raise one ``BuildError`` listing every tensor that is missing, has another shape, or is unknown."""
        expectation: dict[str, Shape] = {}
        for name, shape in shapes.items():
            pieces = self.pieces(name, shape)
            expectation |= {self.key(k): _stored_shape(p, shape) for p in pieces for k in p.keys}
        unused = {self.key(name) for name in self.tied}
        absent = [f"{key} {list(shape)}" for key, shape in expectation.items() if key not in self.stored]
        wrong = [
            f"{key} has shape {list(self.stored[key])}, expected {list(shape)}"
            for key, shape in expectation.items()
            if key in self.stored and tuple(self.stored[key]) != shape
        ]
        extra = [
            f"{key} {list(shape)}"
            for key, shape in self.stored.items()
            if key not in expectation and key not in unused and not self.family.ignored(key)
        ]
        kinds = (("missing", absent), ("with a wrong shape", wrong), ("unknown to the model", extra))
        if absent or wrong or extra:
            raise BuildError(
                "the checkpoint does not match its config.json:\n"
                + "\n".join(line for kind, items in kinds if items for line in _listed(kind, items)),
                why="a checkpoint must have exactly the tensors of the model that config.json describes",
                fix="use the config.json that belongs to these weights, and complete the download of the model",
            )

    def runs(self, name: str, shape: Shape, runs: Callable[[str], Iterator[UnreadRows]]) -> Iterator[UnreadRows]:
        """Assemble the weight from ``runs(key)`` as consecutive runs of rows; any thread may read any of them."""
        for piece in self.pieces(name, shape):
            yield from _assembled(piece, [runs(self.key(key)) for key in piece.keys])


def _assembled(piece: Piece, parts: list[Iterator[UnreadRows]]) -> Iterator[UnreadRows]:
    if piece.how == "interleave":
        for gate, up in zip(*parts, strict=True):
            yield UnreadRows(gate.size + up.size, partial(_in_turn, gate, up))
    elif piece.how in _REORDERED:
        for rows in parts[0]:
            yield UnreadRows(rows.size, partial(_REORDERED[piece.how], rows))
    else:
        yield from parts[0]


def _in_turn(first: UnreadRows, second: UnreadRows) -> Array:
    """Interleave the rows of two runs."""
    rows = first.read()
    return np.stack((rows, second.read()), axis=1).reshape(-1, *rows.shape[1:])


def _read_transposed(rows: UnreadRows) -> Array:
    return np.ascontiguousarray(rows.read().swapaxes(1, 2))


def _interleave_halves(rows: UnreadRows) -> Array:
    """Interleave the two halves of every matrix of a run."""
    stacks = rows.read()
    return interleave_halves(stacks, stacks.shape[1] // 2)


def interleave_halves(stacks: Array, half: int) -> Array:
    """Interleave the first ``half`` of the rows of every matrix with the others, [E, 2 * half, columns]."""
    pairs = stacks.reshape(len(stacks), 2, half, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(len(stacks), 2 * half, -1)


_REORDERED: Mapping[str, Callable[[UnreadRows], Array]] = {"transpose": _read_transposed, "halves": _interleave_halves}


def are_same(first: Iterator[Array], second: Iterator[Array]) -> bool:
    """Return True if two sequences of rows hold the same values, however they are split."""
    rest: Array | None = None
    for rows in first:
        at = 0
        while at < len(rows):
            rest = next(second) if rest is None or not len(rest) else rest
            count = min(len(rest), len(rows) - at)
            if not np.array_equal(rows[at : at + count], rest[:count]):
                return False
            at, rest = at + count, rest[count:]
    return True


def _stored_shape(piece: Piece, shape: Shape) -> Shape:
    """Return the shape of each tensor of ``piece`` in a weight of ``shape``."""
    part = shape[1:] if piece.how in ("stack", "interleave") else shape
    if piece.how == "interleave":
        return (part[0] // 2, *part[1:])
    return (part[0], part[2], part[1]) if piece.how == "transpose" else part


def _listed(kind: str, items: list[str]) -> list[str]:
    more = [f"      and {len(items) - _LISTED} more"] if len(items) > _LISTED else []
    return [f"    {len(items)} {kind}:", *[f"      {item}" for item in items[:_LISTED]], *more]
