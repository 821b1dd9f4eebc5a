"""A target model: its checkpoint, the facts of its configuration, and the weights that its graph needs."""

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
    """A matrix in the blocks of a GGUF file: their type (``Q4_1``), and ``read()``, which yields rows as uint8."""

    kind: str
    read: Callable[[], Iterator[Array]]


@dataclass(frozen=True)
class Target:
    """A checkpoint of a supported family. ``spec`` has no taps until a drafter is read.

    ``skeleton`` has names, shapes and roles of the graph's weights; ``sources`` maps them to stored tensors.
    """

    checkpoint: Checkpoint
    spec: TargetSpec
    skeleton: Skeleton
    sources: Sources

    @classmethod
    def open(cls, source: Path) -> Target:
        """Open a checkpoint. Raises ``BuildError`` if it cannot be read or is not supported."""
        return cls.of(Checkpoint.open(source))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Target:
        """Create the target of an open checkpoint. Raises ``BuildError`` for an unsupported architecture."""
        file = str(checkpoint.config_file)
        skeleton = Skeleton(checkpoint.config, file)
        spec = skeleton.family.describe(checkpoint.config, file)
        return cls(checkpoint, spec, skeleton, Sources(skeleton.family, checkpoint.config, checkpoint.shapes))

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
        """Return the GGUF blocks of a graph weight; None if it is not stored in blocks, or spans part of a tensor."""
        pieces = self.sources.pieces(name, shape)
        if len(pieces) != 1 or pieces[0].how != "copy":
            return None
        key = self.sources.key(pieces[0].keys[0])
        tensor = self.checkpoint.tensors.get(key)
        if not isinstance(tensor, GgufTensor) or tensor.entry.dtype.lower() not in GGUF_BLOCK_BYTES:
            return None
        return StoredBlocks(tensor.entry.dtype, lambda: self.checkpoint.blocks(key))

    def stored_as(self, name: str, shape: Shape) -> str:
        """Return the name of the stored tensor with the first rows of a graph weight."""
        return self.sources.key(self.sources.pieces(name, shape)[0].keys[0])
