"""Weights of a drafter's graph, from its own checkpoint or, if omitted there, from its target's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...graphs.drafters import DrafterSpec
from ...graphs.drafters.tensor_layout import EMBEDDING, LM_HEAD, rows_of_fused
from ...graphs.targets.checkpoint_pieces import Array, Shape, UnreadRows, are_same
from ...graphs.targets.weight_roles import Role, RoledWeight
from ...plugins.errors import BuildError
from .checkpoint import Checkpoint
from .formats.base import StoredTensor
from .safetensors import TensorEntry
from .target import Target

_ROLES: Mapping[str, Role] = {EMBEDDING: "embedding", LM_HEAD: "lm_head"}


def open_head(source: Path) -> Checkpoint:
    """Open the checkpoint of a head. Projections stored fused appear as separate tensors."""
    checkpoint = Checkpoint.open(source)
    rows = rows_of_fused(checkpoint.shapes)
    parts = {name: TensorRows(checkpoint.tensors[key], begin, end) for name, (key, begin, end) in rows.items()}
    fused = {key for key, _, _ in rows.values()}
    unfused = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in fused}
    return replace(checkpoint, tensors=unfused | parts) if parts else checkpoint


@dataclass(frozen=True)
class TensorRows:
    """Rows ``begin`` to ``end`` of a fused tensor as a separate tensor, dequantized."""

    whole: StoredTensor
    begin: int
    end: int

    @property
    def entry(self) -> TensorEntry:
        return self.whole.entry

    @property
    def granule(self) -> int:
        return self.whole.granule

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.end - self.begin, *self.whole.shape[1:])

    def rows(self, begin: int, end: int) -> Array:
        return self.whole.rows(self.begin + begin, self.begin + end)


@dataclass(frozen=True)
class HeadWeights:
    """The weights of one drafter on its target, by their names in the drafter's graph."""

    checkpoint: Checkpoint
    head: DrafterSpec
    target: Target

    @property
    def sources(self) -> tuple[Checkpoint, ...]:
        """The checkpoints that provide weights."""
        return (self.checkpoint, self.target.checkpoint) if self.head.shared else (self.checkpoint,)

    @property
    def has_targets_embedding(self) -> bool:
        """True if the head's embedding equals the target's: omitted, or stored again with every value equal.

        The comparison stops at the first difference.
        """
        if EMBEDDING in self.head.shared:
            return True
        shape, its = self.head.expected_shapes()[EMBEDDING], target_weight(self.target, EMBEDDING)
        if shape != its.shape:
            return False
        return are_same(self.read(EMBEDDING, shape), self.target.read(its.name, shape))

    def runs(self, name: str, shape: Shape) -> Iterator[UnreadRows]:
        """Iterate over one weight as consecutive runs of rows, not read yet."""
        if name in self.head.shared:
            weight = target_weight(self.target, name)
            return self.target.runs(weight.name, weight.shape)
        return self.checkpoint.runs(self.head.keys[name])

    def read(self, name: str, shape: Shape) -> Iterator[Array]:
        """Iterate over one weight as consecutive runs of rows."""
        return (run.read() for run in self.runs(name, shape))

    def position(self, name: str, shape: Shape) -> tuple[str, int]:
        """Return the file and offset of the first rows."""
        if name in self.head.shared:
            weight = target_weight(self.target, name)
            return self.target.checkpoint.position(self.target.stored_as(weight.name, weight.shape))
        return self.checkpoint.position(self.head.keys[name])


def read_from_target(checkpoint: Checkpoint, head: DrafterSpec, target: Target | None) -> tuple[str, ...]:
    """Return the head's weights that a graph can read from the ``target``, if it is present."""
    if EMBEDDING in head.shared:
        return (EMBEDDING,)
    return (EMBEDDING,) if target and HeadWeights(checkpoint, head, target).has_targets_embedding else ()


def target_weight(target: Target, name: str) -> RoledWeight:
    """Return the target's weight that a drafter calls ``name``; for a tied LM head, the embedding.

    Raises ``BuildError`` if the target has none.
    """
    by_role = {weight.role: weight for weight in reversed(target.skeleton.weights)}
    found = by_role.get(_ROLES[name]) or by_role.get("embedding")
    if found is None:
        raise BuildError(
            f"the target has no weight for the drafter's {name}",
            why="the head does not store this weight, so it must come from the target",
            fix="use a head that stores this weight",
        )
    return found
