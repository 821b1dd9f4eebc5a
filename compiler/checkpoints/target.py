"""A target model: its checkpoint, the facts of its configuration, and the weights that its graph needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...graphs.targets import Family, Piece, TargetSpec, family_for
from ...graphs.targets.checkpoint_pieces import Array, Shape, Sources, UnreadRows, are_same, interleave_halves
from ...graphs.targets.skeleton import Skeleton
from .checkpoint import Checkpoint, read_blocks
from .formats.mxfp4 import Mxfp4, Mxfp4Matrix
from .gguf.weights import ROUNDED, GgufStack, GgufTensor


@dataclass(frozen=True)
class StoredBlocks:
    """A matrix in the blocks of a GGUF file: their type (``Q4_1``), and ``read()``, which yields rows as uint8.

    MXFP4 of a safetensors checkpoint comes in the same order of bytes. The rows of stacked matrices follow each other.
    """

    kind: str
    read: Callable[[], Iterator[Array]]


@dataclass(frozen=True)
class Target:
    """A checkpoint of a supported family. ``spec`` has no taps until a drafter is read.

    ``skeleton`` has names, shapes and roles of the graph's weights; ``sources`` maps them to stored tensors. ``notes``
    are warnings about the checkpoint.
    """

    checkpoint: Checkpoint
    spec: TargetSpec
    skeleton: Skeleton
    sources: Sources
    notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, source: Path) -> Target:
        """Open a checkpoint. Raises ``BuildError`` if it cannot be read or is not supported."""
        return cls.of(Checkpoint.open(source))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Target:
        """Create the target of an open checkpoint. Raises ``BuildError`` for an unsupported architecture."""
        file = str(checkpoint.config_file)
        family = family_for(checkpoint.config)
        spec = family.describe(checkpoint.config, file)
        sources = Sources(family, checkpoint.config, checkpoint.shapes)
        if differing := _tied_but_different(checkpoint, sources):
            # As in transformers, whose copy of a tied tensor is not read only if it holds the same values.
            untied = replace(checkpoint, config=family.untied(checkpoint.config))
            return replace(cls.of(untied), notes=(differing,))
        return cls(checkpoint, spec, Skeleton(checkpoint.config, file), sources)

    def with_taps(self, taps: Sequence[int] | None = None) -> Target:
        """Return the target with the taps of a drafter, or with the default ones. The rest is shared."""
        return replace(self, spec=self.spec.with_taps(taps))

    @property
    def family(self) -> Family:
        """The model family."""
        return self.skeleton.family

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of its ``config.json``."""
        return self.checkpoint.config

    @property
    def folder(self) -> Path:
        """The folder with the checkpoint's configuration and tokenizer."""
        return self.checkpoint.folder

    def check(self) -> None:
        """Raise one ``BuildError`` listing every tensor that is missing, has another shape, or is unknown."""
        self.sources.check(self.skeleton.shapes)

    def runs(self, name: str, shape: Shape) -> Iterator[UnreadRows]:
        """Iterate over one weight of the graph as consecutive runs of rows, not read yet."""
        return self.sources.runs(name, shape, self.checkpoint.runs)

    def read(self, name: str, shape: Shape) -> Iterator[Array]:
        """Iterate over the values of one weight of the graph, as consecutive runs of rows."""
        return (run.read() for run in self.runs(name, shape))

    def blocks(self, name: str, shape: Shape) -> StoredBlocks | None:
        """Return the blocks of a graph weight; None if it is not stored in blocks, or in several types."""
        pieces = self.sources.pieces(name, shape)
        stored = [self._in_blocks(piece) for piece in pieces]
        kinds = {tensor.entry.dtype for tensors in stored for tensor in tensors}
        if not all(stored) or len(kinds) != 1 or not kinds <= {*ROUNDED}:
            return None
        both = tuple(zip(pieces, stored, strict=True))
        return StoredBlocks(kinds.pop(), lambda: (rows for piece, tensors in both for rows in _rows(piece, tensors)))

    def _in_blocks(self, piece: Piece) -> tuple[GgufTensor | Mxfp4Matrix, ...]:
        """Return the matrices in blocks whose rows alternate in a piece of a graph weight; none without blocks."""
        tensors = [self.checkpoint.tensors.get(self.sources.key(key)) for key in piece.keys]
        if piece.how == "transpose":
            return tensors[0].flat if isinstance(tensors[0], GgufStack | Mxfp4) else ()
        found = tuple(tensor for tensor in tensors if isinstance(tensor, GgufTensor))
        return found if len(found) == len(tensors) else ()

    def stored_as(self, name: str, shape: Shape) -> str:
        """Return the name of the stored tensor with the first rows of a graph weight."""
        return self.sources.key(self.sources.pieces(name, shape)[0].keys[0])


def _tied_but_different(checkpoint: Checkpoint, sources: Sources) -> str:
    """Describe a stored tensor that the config ties to another one with other values; '' if there is none."""
    for alias, name in sources.tied.items():
        first, second = sources.key(alias), sources.key(name)
        if not {first, second} <= checkpoint.tensors.keys():
            continue
        both = (checkpoint.pieces(each) for each in (first, second))
        if checkpoint.shapes[first] != checkpoint.shapes[second] or not are_same(*both):
            return (
                f"config.json ties {alias} to {name}, but the checkpoint stores both with different values, so they "
                "are not tied, as in transformers; set tie_word_embeddings to false to omit this warning"
            )
    return ""


def _rows(piece: Piece, tensors: Sequence[GgufTensor | Mxfp4Matrix]) -> Iterator[Array]:
    """Read the blocks of the tensors of a piece, all of one shape, as rows of matrices."""
    rows_of_one = math.prod(tensors[0].shape[1:-1])  # in what is one row of the tensor: a matrix of a stack
    for parts in zip(*map(read_blocks, tensors), strict=True):
        if piece.how == "halves":
            rows = interleave_halves(parts[0], rows_of_one // 2)
        else:
            rows = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        yield rows.reshape(len(parts) * len(parts[0]) * rows_of_one, -1)
