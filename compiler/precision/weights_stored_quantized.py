"""Quantized weights of an FP8 checkpoint, with their scales.

Nothing is quantized here. A weight that the checkpoint stores unquantized stays so, and counts against the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    """The weights of one target. Losses come from giving a row one scale where the checkpoint has several.

    ``ranges`` are calibrated, for inputs that the checkpoint scales at run time.
    """

    target: Target
    selection: Selection
    lowering: Lowering
    ranges: Scales | None = None
    _losses: dict[str, Loss] = field(default_factory=dict)

    def only(self, names: Collection[str]) -> StoredFp8:
        """Return this source for a graph that quantizes only these weights."""
        return replace(self, selection=self.selection.only(names))

    def uncalibrated(self) -> list[str]:
        """Return weights whose inputs have no scale in the checkpoint or in ``ranges``."""
        return [name for name in self._dynamic() if self.ranges is None or name not in self.ranges.inputs]

    def check(self) -> None:
        """Raise ``BuildError`` for a checkpoint that cannot be built in FP8."""
        checkpoint = self.target.checkpoint
        if not any(checkpoint.fp8(name) for name in checkpoint.tensors):
            raise BuildError(
                f"{checkpoint.folder} is not an FP8 checkpoint: its weights are stored as {checkpoint.format}",
                why=f"--precision {self.selection.recipe.name} uses weights and calibrated scales as stored",
                fix=_QUANTIZE,
            )
        if dynamic := self.uncalibrated():
            raise BuildError(
                f"{checkpoint.folder} has no input scale for {counted(dynamic, 'FP8 weight')}: {listed(dynamic)}",
                why="the checkpoint expects scales that are computed per token at run time; TensorRT needs one "
                "calibrated scale per input",
                fix=_QUANTIZE,
            )

    def storage(self) -> tuple[dict[str, QuantizedWeight], dict[str, str]]:
        """Return the weights that are FP8 in the graph, with their scales, and reasons for the others."""
        taken: dict[str, QuantizedWeight] = {}
        wide: dict[str, str] = {}
        for name, weight in self.selection.weights.items():
            tensors = self._tensors(weight)
            scaled = [tensor for tensor in tensors if tensor is not None]
            if len(scaled) == len(tensors):
                taken[name] = self._scaled(weight, scaled)
            elif len(tensors) == 1:
                wide[name] = "the checkpoint stores it unquantized"
            else:
                wide[name] = (
                    f"the checkpoint stores {len(tensors) - len(scaled)} of its {len(tensors)} tensors unquantized"
                )
        return taken, wide

    @property
    def key(self) -> Any:
        """The recipe, its selection and the ranges; the rest follows from the checkpoint."""
        inputs = self.ranges.inputs if self.ranges else {}
        of_inputs = {name: float(np.max(inputs[name])) for name in self._dynamic() if name in inputs}
        found = [self.selection.key, self.selection.recipe.share, sorted(self.selection.weights), of_inputs]
        return [*found, "experts share a scale"] if self.lowering.experts_share_scale else found

    @property
    def losses(self) -> Mapping[str, float]:
        """The error of rescaling, by tensor."""
        return {name: loss.relative for name, loss in self._losses.items()}

    def rounds(self) -> list[RoledWeight]:
        """No weights: codes are read from the checkpoint, at most with other scales."""
        return []

    def notes(self) -> list[str]:
        """Return notes on rescaled tensors, unused parts of the checkpoint, and the calibration."""
        notes, losses = [], self.losses
        if losses:
            name, error = max(losses.items(), key=lambda item: item[1])
            notes.append(
                f"{counted(losses)} {'was' if len(losses) == 1 else 'were'} rescaled to one scale per row or per "
                f"tensor: the checkpoint's scales are finer; the relative error is at most {error:.2%} ({name})"
            )
        cached = any(name.endswith((".k_scale", ".v_scale")) for name in self.target.checkpoint.companions)
        kind = self.selection.recipe.kv_cache
        if cached and not self.selection.recipe.calibrates_caches:
            notes.append(f"the checkpoint's scales for an FP8 KV cache were ignored: the KV cache stays {kind}")
        return notes + (list(self.ranges.facts.warnings) if self.ranges else [])

    def codes(self, name: str, shape: Shape) -> Iterator[Array]:
        """Yield the weight's E4M3 codes as consecutive runs of rows."""

        checkpoint, weight = self.target.checkpoint, self.selection.weights[name]
        new_scale = self._new_scale(weight)

        def runs(key: str) -> Iterator[UnreadRows]:
            tensor = checkpoint.fp8(key)
            scale = new_scale(tensor) if tensor is not None else None
            is_new = tensor is not None and tensor.rescaled(scale)
            loss = self._losses.setdefault(key, Loss()) if is_new else None
            return map(UnreadRows.of, checkpoint.codes(key, loss, scale))

        for run in self.target.sources.runs(name, shape, runs):
            yield np.ascontiguousarray(run.read()).view(E4M3.dtype)

    def scales(self, name: str, _: Shape) -> Iterator[Array]:
        """Yield the few scales of a weight at once."""
        yield self._few(self.selection.weights[name])

    def _scaled(self, weight: RoledWeight, tensors: Sequence[ScaledFp8]) -> QuantizedWeight:
        from ...graphs.quantization import QuantizedWeight, Rounding

        inputs = [tensor.input_scale() for tensor in tensors] if self._rounds(weight) else []
        if None in inputs and self.ranges is not None:
            inputs = [float(scales_of(np.max(self.ranges.inputs[weight.name]), E4M3.largest))]
        input_scale = max((scale for scale in inputs if scale is not None), default=None)
        if input_scale is not None:
            self._require_use(f"the input scale of {weight.name}", np.asarray(input_scale, np.float32))
        rounding = None if input_scale is None else Rounding(_E4M3, input_scale)
        return QuantizedWeight(_E4M3, self._few(weight).shape, input=rounding)

    def _few(self, weight: RoledWeight) -> Array:
        """Return the scales of a weight. Raises ``BuildError`` if its values would overflow or vanish."""
        scales = self._fewest(weight)
        self._require_use(f"a scale of {weight.name}", scales)
        return scales

    def _require_use(self, noun: str, scales: Array) -> None:
        if why := unusable(scales, _E4M3, self.selection.recipe.wide):
            raise BuildError(
                f"{noun} cannot be used", why=why, fix="quantize the model again: a working model has no such scales"
            )

    def _fewest(self, weight: RoledWeight) -> Array:
        """Return the minimal equivalent scales: one, one per row, or one per expert computed in the wide type.

        TensorRT multiplies stacked matrices in FP8 with one scale or one per row. With one per matrix it dequantizes
        them first, except in its own expert layer, which requires it, or one per stack.
        """
        tensors = [tensor for tensor in self._tensors(weight) if tensor is not None]
        if len(tensors) == 1:
            return fewest(tensors[0].row_scales())
        rows, is_one, new_scale = [], self._of_matrices(weight), self._new_scale(weight)
        for piece in self.target.sources.pieces(weight.name, weight.shape):
            found = [tensor for tensor in self._of(piece.keys) if tensor is not None]
            matrices = [
                np.broadcast_to(t.row_scales() if (s := new_scale(t)) is None else s, t.shape[:1]) for t in found
            ]
            rows.append(np.stack(matrices, axis=1).reshape(-1))  # gate and up interleaved, like their rows
        if len(weight.shape) < 3:
            return fewest(np.concatenate(rows))
        of_rows = np.stack(rows).astype(np.float32)
        few = fewest(of_rows)
        return of_rows if few.ndim == 1 and self._rounds(weight) and not is_one else few

    def _rounds(self, weight: RoledWeight) -> bool:
        return rounds_input(self.selection.recipe, weight.role)

    def _of_matrices(self, weight: RoledWeight) -> bool:
        """Return True if each stacked matrix needs one scale, as in TensorRT's own expert layer."""
        return len(weight.shape) > 2 and self._rounds(weight) and self.lowering.has_expert_layer

    def _new_scale(self, weight: RoledWeight) -> Callable[[ScaledFp8], float | None]:
        """Return the scale of a matrix that has one in the graph and may have several in the checkpoint, else None."""
        if not self._of_matrices(weight):
            return lambda _: None
        if not self.lowering.experts_share_scale:
            return ScaledFp8.matrix_scale
        largest = max((each.matrix_scale() for each in self._tensors(weight) if each is not None), default=None)
        return lambda _: largest

    def _dynamic(self) -> list[str]:
        """Return weights whose inputs have no scale in the checkpoint."""
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
    """Drop trailing dimensions along which the scales are equal."""
    while scales.ndim and np.all(scales == scales[..., :1]):
        scales = scales[..., 0]
    return np.asarray(scales, np.float32)
