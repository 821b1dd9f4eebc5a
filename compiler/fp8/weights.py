"""What an FP8 graph takes from an FP8 checkpoint: which weights as they are stored, with which scales, and which not.

Nothing is quantised here. A weight that the checkpoint holds wide stays wide, and counts against the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graphs.sources import Array, Shape, Sources
from ...plugins.errors import BuildError
from ..checkpoint import Checkpoint
from ..formats.problems import counted, listed
from ..formats.scaled import Loss, ScaledFp8
from ..recipes import Recipe

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...graphs.census import RoledWeight
    from ...graphs.fp8 import Fp8Weight
    from .proof import Narrowed

ROUNDED = ("attention", "mlp")  # the roles whose inputs are rounded as well
_QUANTIZE = "make an FP8 checkpoint with calibrated inputs (`peagle-compile quantize`), or build in bf16 or fp16"


@dataclass(frozen=True)
class Fp8Weights:
    """Of one target. ``losses`` fills while codes are read: what giving a row one scale instead of many changed."""

    checkpoint: Checkpoint
    sources: Sources
    recipe: Recipe
    losses: dict[str, Loss] = field(default_factory=dict)

    @cached_property
    def wanted(self) -> Mapping[str, RoledWeight]:
        """The weights of the graph that the recipe narrows, by name."""
        from ...graphs.census import census

        roles = self.recipe.narrow_roles
        return {weight.name: weight for weight in census(self.checkpoint.config) if weight.role in roles}

    def check(self) -> None:
        """Raise ``BuildError`` for a checkpoint that no FP8 graph can be made from."""
        if not any(self.checkpoint.fp8(name) for name in self.checkpoint.tensors):
            raise BuildError(
                f"{self.checkpoint.folder} is not an FP8 checkpoint: its weights are stored as "
                f"{self.checkpoint.format}",
                why=f"--precision {self.recipe.name} takes weights and calibrated scales as a checkpoint holds them",
                fix=_QUANTIZE,
            )
        dynamic = [
            tensor.name
            for weight in self.wanted.values()
            if weight.role in ROUNDED
            for tensor in self._tensors(weight)
            if tensor is not None and tensor.input_scales is None
        ]
        if dynamic:
            raise BuildError(
                f"{self.checkpoint.folder} has no scale for the input of {counted(dynamic, 'FP8 weight')}: "
                f"{listed(dynamic)}",
                why="they are meant to be scaled at run time, token by token; a graph for TensorRT has one calibrated "
                "number for each input",
                fix=_QUANTIZE,
            )

    def weights(self) -> tuple[dict[str, Fp8Weight], dict[str, str]]:
        """What can be FP8 in the graph, with its scales, and why the rest of what should be cannot."""
        taken: dict[str, Fp8Weight] = {}
        wide: dict[str, str] = {}
        for name, weight in self.wanted.items():
            tensors = self._tensors(weight)
            narrow = [tensor for tensor in tensors if tensor is not None]
            if len(narrow) == len(tensors):
                taken[name] = self._scaled(weight, narrow)
            elif len(tensors) == 1:
                wide[name] = "the checkpoint holds it wide"
            else:
                wide[name] = f"the checkpoint holds {len(tensors) - len(narrow)} of its {len(tensors)} tensors wide"
        return taken, wide

    @property
    def key(self) -> Mapping[str, Any]:
        """What the graph depends on beside the checkpoint."""
        return self.recipe.record() | {"share": str(self.recipe.share)}

    def narrow(self, *models: ir.Model) -> Narrowed:
        """Rewrite semantic graphs, all of one target, in place."""
        from ...graphs.fp8 import narrow
        from .proof import Narrowed

        taken, wide = self.weights()
        results = [narrow(model, taken) for model in models]
        return Narrowed(self, wide | dict(results[0].refused), results[0].shared)

    def codes(self, name: str, shape: Shape) -> Iterator[Array]:
        """The weight's E4M3 numbers as consecutive runs of rows."""
        import ml_dtypes

        def read(key: str) -> Iterator[Array]:
            tensor = self.checkpoint.fp8(key)
            loss = self.losses.setdefault(key, Loss()) if tensor is not None and tensor.rescaled else None
            return self.checkpoint.codes(key, loss)

        for rows in self.sources.read(name, shape, read):
            yield np.ascontiguousarray(rows).view(ml_dtypes.float8_e4m3fn)

    def _scaled(self, weight: RoledWeight, tensors: Sequence[ScaledFp8]) -> Fp8Weight:
        from ...graphs.fp8 import Fp8Weight

        inputs = [tensor.input_scale() for tensor in tensors] if weight.role in ROUNDED else []
        input_scale = max((scale for scale in inputs if scale is not None), default=None)
        if len(tensors) == 1:
            return Fp8Weight.of(tensors[0].row_scales(), input_scale)
        rows = []
        for piece in self.sources.pieces(weight.name, weight.shape):
            each = [np.broadcast_to(t.row_scales(), t.shape[:1]) for t in self._of(piece.keys) if t is not None]
            rows.append(np.stack(each, axis=1).reshape(-1))  # gate and up in turn, as their rows are
        return Fp8Weight.of(np.stack(rows) if len(weight.shape) == 3 else np.concatenate(rows), input_scale)

    def _tensors(self, weight: RoledWeight) -> list[ScaledFp8 | None]:
        pieces = self.sources.pieces(weight.name, weight.shape)
        return [tensor for piece in pieces for tensor in self._of(piece.keys)]

    def _of(self, keys: Sequence[str]) -> list[ScaledFp8 | None]:
        return [self.checkpoint.fp8(self.sources.key(key)) for key in keys]
