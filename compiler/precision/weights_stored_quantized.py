"""Quantized weights from an FP8 checkpoint: which as they are stored, with which scales, and which not.

Nothing is quantized here. A weight that the checkpoint holds wide stays wide, and counts against the recipe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...graphs.targets.checkpoint_pieces import Array, Shape, UnreadRows
from ...plugins.errors import BuildError
from ...plugins.number_types import E4M3, scales_of
from ...plugins.problems import counted, listed
from ..checkpoints.formats.fp8_with_scales import Loss, ScaledFp8
from ..checkpoints.target import Target
from .quantization_schemes import rounds_input
from .rounding.numbers_to_codes import unusable
from .weight_selection import Selection

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.quantization import QuantizedWeight
    from ...graphs.targets.weight_roles import RoledWeight
    from .calibration.saved_ranges import Scales

_E4M3: Literal["float8_e4m3fn"] = "float8_e4m3fn"
_QUANTIZE = "make an FP8 checkpoint with calibrated inputs (`peagle-compile quantize`), or build in bf16 or fp16"


@dataclass(frozen=True)
class StoredFp8:
    """The weights of one target. Losses are those of giving a row one scale where the checkpoint has many.

    ``ranges`` are calibrated, for inputs that the checkpoint means to be scaled at run time.
    """

    target: Target
    selection: Selection
    lowering: Lowering
    ranges: Scales | None = None
    _losses: dict[str, Loss] = field(default_factory=dict)

    def only(self, names: Collection[str]) -> StoredFp8:
        """Return this source for a graph in which all weights but these stay wide."""
        return replace(self, selection=self.selection.only(names))

    def uncalibrated(self) -> list[str]:
        """Weights whose inputs have a scale neither in the checkpoint nor in ``ranges``."""
        return [name for name in self._dynamic() if self.ranges is None or name not in self.ranges.inputs]

    def check(self) -> None:
        """Raise ``BuildError`` for a checkpoint that no FP8 graph can be made from."""
        checkpoint = self.target.checkpoint
        if not any(checkpoint.fp8(name) for name in checkpoint.tensors):
            raise BuildError(
                f"{checkpoint.folder} is not an FP8 checkpoint: its weights are stored as {checkpoint.format}",
                why=f"--precision {self.selection.recipe.name} takes weights and calibrated scales as a checkpoint "
                "holds them",
                fix=_QUANTIZE,
            )
        if dynamic := self.uncalibrated():
            raise BuildError(
                f"{checkpoint.folder} has no scale for the input of {counted(dynamic, 'FP8 weight')}: "
                f"{listed(dynamic)}",
                why="they are meant to be scaled at run time, token by token; a graph for TensorRT has one calibrated "
                "number for each input",
                fix=_QUANTIZE,
            )

    def storage(self) -> tuple[dict[str, QuantizedWeight], dict[str, str]]:
        """What can be FP8 in the graph, with its scales, and why the rest of what should be cannot."""
        taken: dict[str, QuantizedWeight] = {}
        wide: dict[str, str] = {}
        for name, weight in self.selection.weights.items():
            tensors = self._tensors(weight)
            scaled = [tensor for tensor in tensors if tensor is not None]
            if len(scaled) == len(tensors):
                taken[name] = self._scaled(weight, scaled)
            elif len(tensors) == 1:
                wide[name] = "the checkpoint holds it wide"
            else:
                wide[name] = f"the checkpoint holds {len(tensors) - len(scaled)} of its {len(tensors)} tensors wide"
        return taken, wide

    @property
    def key(self) -> Any:
        """The recipe, what it quantizes and the ranges: the rest is the checkpoint's."""
        inputs = self.ranges.inputs if self.ranges else {}
        of_inputs = {name: float(np.max(inputs[name])) for name in self._dynamic() if name in inputs}
        return [self.selection.key, self.selection.recipe.share, sorted(self.selection.weights), of_inputs]

    @property
    def losses(self) -> Mapping[str, float]:
        """What scaling anew changed, by tensor."""
        return {name: loss.relative for name, loss in self._losses.items()}

    def notes(self) -> list[str]:
        """What was scaled anew, what of the checkpoint is not used, and what calibration had to say."""
        notes, losses = [], self.losses
        if losses:
            name, error = max(losses.items(), key=lambda item: item[1])
            notes.append(
                f"{len(losses)} tensors have one scale for each row, or for all, where the checkpoint has more; "
                f"the relative error is {error:.2%} at most ({name})"
            )
        cached = any(name.endswith((".k_scale", ".v_scale")) for name in self.target.checkpoint.companions)
        kind = self.selection.recipe.kv_cache
        if cached and not self.selection.recipe.calibrates_caches:
            notes.append(f"the checkpoint's scales for an FP8 KV cache are not used: it stays {kind}")
        return notes + (list(self.ranges.facts.warnings) if self.ranges else [])

    def codes(self, name: str, shape: Shape) -> Iterator[Array]:
        """The weight's E4M3 numbers as consecutive runs of rows."""

        checkpoint, is_one = self.target.checkpoint, self._of_matrices(self.selection.weights[name])

        def runs(key: str) -> Iterator[UnreadRows]:
            tensor = checkpoint.fp8(key)
            scale = tensor.matrix_scale() if tensor is not None and is_one else None
            is_new = tensor is not None and tensor.rescaled(scale)
            loss = self._losses.setdefault(key, Loss()) if is_new else None
            return map(UnreadRows.of, checkpoint.codes(key, loss, scale))

        for run in self.target.sources.runs(name, shape, runs):
            yield np.ascontiguousarray(run.read()).view(E4M3.dtype)

    def scales(self, name: str, _: Shape) -> Iterator[Array]:
        """The scales of a weight all at once: they are few."""
        yield self._few(self.selection.weights[name])

    def _scaled(self, weight: RoledWeight, tensors: Sequence[ScaledFp8]) -> QuantizedWeight:
        from ...graphs.quantization import QuantizedWeight, Rounding

        inputs = [tensor.input_scale() for tensor in tensors] if self._rounds(weight) else []
        if None in inputs and self.ranges is not None:
            inputs = [float(scales_of(np.max(self.ranges.inputs[weight.name]), E4M3.largest))]
        input_scale = max((scale for scale in inputs if scale is not None), default=None)
        if input_scale is not None:
            self._require_use(f"the scale of what enters {weight.name}", np.asarray(input_scale, np.float32))
        rounding = None if input_scale is None else Rounding(_E4M3, input_scale)
        return QuantizedWeight(_E4M3, self._few(weight).shape, input=rounding)

    def _few(self, weight: RoledWeight) -> Array:
        """The scales of a weight. Raises ``BuildError`` for some that its values would overflow or vanish with."""
        scales = self._fewest(weight)
        self._require_use(f"a scale of {weight.name}", scales)
        return scales

    def _require_use(self, what: str, scales: Array) -> None:
        if why := unusable(scales, _E4M3, self.selection.recipe.wide):
            raise BuildError(
                f"{what} cannot be used", why=why, fix="quantise the model again: a working model has no such numbers"
            )

    def _fewest(self, weight: RoledWeight) -> Array:
        """The fewest scales that say the same: one, or one for each row; or for each expert of those multiplied wide.

        TensorRT multiplies stacked matrices in FP8 by one scale or by those of their rows. With one for each matrix it
        widens them first, but in its own layer of experts, which takes no more: there all rows of one have the same.
        """
        tensors = [tensor for tensor in self._tensors(weight) if tensor is not None]
        if len(tensors) == 1:
            return fewest(tensors[0].row_scales())
        rows, is_one = [], self._of_matrices(weight)
        for piece in self.target.sources.pieces(weight.name, weight.shape):
            found = [tensor for tensor in self._of(piece.keys) if tensor is not None]
            matrices = [np.broadcast_to(t.matrix_scale() if is_one else t.row_scales(), t.shape[:1]) for t in found]
            rows.append(np.stack(matrices, axis=1).reshape(-1))  # gate and up in turn, as their rows are
        if len(weight.shape) < 3:
            return fewest(np.concatenate(rows))
        of_rows = np.stack(rows).astype(np.float32)
        few = fewest(of_rows)
        return of_rows if few.ndim == 1 and self._rounds(weight) and not is_one else few

    def _rounds(self, weight: RoledWeight) -> bool:
        return rounds_input(self.selection.recipe, weight.role)

    def _of_matrices(self, weight: RoledWeight) -> bool:
        """Whether each of stacked matrices has one scale: TensorRT's own layer of experts takes no more."""
        return len(weight.shape) > 2 and self._rounds(weight) and self.lowering.has_expert_layer

    def _dynamic(self) -> list[str]:
        """Weights whose inputs the checkpoint has no scale for."""
        return [
            weight.name
            for weight in self.selection.weights.values()
            if self._rounds(weight)
            if any(tensor is not None and tensor.input_scales is None for tensor in self._tensors(weight))
        ]

    def _tensors(self, weight: RoledWeight) -> list[ScaledFp8 | None]:
        pieces = self.target.sources.pieces(weight.name, weight.shape)
        return [tensor for piece in pieces for tensor in self._of(piece.keys)]

    def _of(self, keys: Sequence[str]) -> list[ScaledFp8 | None]:
        return [self.target.checkpoint.fp8(self.target.sources.key(key)) for key in keys]


def fewest(scales: Array) -> Array:
    """The scales without the last dims along which they are all the same."""
    while scales.ndim and np.all(scales == scales[..., :1]):
        scales = scales[..., 0]
    return np.asarray(scales, np.float32)
