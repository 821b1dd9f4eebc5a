"""A target model, opened once: its checkpoint, the facts of its configuration, and the weights that its graph needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...graphs.targets import Family, TargetSpec
from ...graphs.targets.checkpoint_pieces import Array, Shape, Sources, UnreadRows
from ...graphs.targets.skeleton import Skeleton
from ...plugins.ops.quantized_linear.packed_weights import GGUF_BLOCK_BYTES
from .checkpoint import Checkpoint
from .gguf.weights import GgufTensor


@dataclass(frozen=True)
class StoredBlocks:
    """A matrix in the blocks of a GGUF file: their type (``Q4_1``), and ``read()`` gives runs of rows, uint8."""

    kind: str
    read: Callable[[], Iterator[Array]]


@dataclass(frozen=True)
class Target:
    """A checkpoint of a family that is served. ``spec`` has no taps before a drafter was read.

    ``skeleton`` tells names, shapes and roles of the graph's weights; ``sources`` which stored tensors they are of.
    """

    checkpoint: Checkpoint
    spec: TargetSpec
    skeleton: Skeleton
    sources: Sources

    @classmethod
    def open(cls, source: Path) -> Target:
        """The target in a checkpoint. Raises ``BuildError`` for one that cannot be read, or is not served."""
        return cls.of(Checkpoint.open(source))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Target:
        """The target of an opened checkpoint. Raises ``BuildError`` for an architecture that is not served."""
        file = str(checkpoint.config_file)
        skeleton = Skeleton(checkpoint.config, file)
        spec = skeleton.family.describe(checkpoint.config, file)
        return cls(checkpoint, spec, skeleton, Sources(skeleton.family, checkpoint.config, checkpoint.shapes))

    def with_taps(self, taps: Sequence[int] | None = None) -> Target:
        """Return the target with the taps of a drafter, or with the default ones; what was read of it is shared."""
        return replace(self, spec=self.spec.with_taps(taps))

    @property
    def family(self) -> Family:
        """The family that serves it."""
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
        """Raise one ``BuildError`` that lists every tensor missing, of another shape, or not known to the model."""
        self.sources.check(self.skeleton.shapes)

    def runs(self, name: str, shape: Shape) -> Iterator[UnreadRows]:
        """One weight of the graph, as consecutive runs of rows that are still to be read."""
        return self.sources.runs(name, shape, self.checkpoint.runs)

    def read(self, name: str, shape: Shape) -> Iterator[Array]:
        """The values of one weight of the graph, as consecutive runs of rows."""
        return (run.read() for run in self.runs(name, shape))

    def blocks(self, name: str, shape: Shape) -> StoredBlocks | None:
        """The blocks that a GGUF file holds a graph weight in; None of one that is not stored so, or not whole."""
        pieces = self.sources.pieces(name, shape)
        if len(pieces) != 1 or pieces[0].how != "copy":
            return None
        key = self.sources.key(pieces[0].keys[0])
        tensor = self.checkpoint.tensors.get(key)
        if not isinstance(tensor, GgufTensor) or tensor.entry.dtype.lower() not in GGUF_BLOCK_BYTES:
            return None
        return StoredBlocks(tensor.entry.dtype, lambda: self.checkpoint.blocks(key))

    def stored_as(self, name: str, shape: Shape) -> str:
        """The stored tensor that the first rows of a weight of the graph come from."""
        return self.sources.key(self.sources.pieces(name, shape)[0].keys[0])
