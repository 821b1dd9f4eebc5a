"""Weights quantized during the build, from an unquantized checkpoint, while they are streamed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graphs.quantization.quantized_weight import QuantizedWeight, Rounding
from ...graphs.targets.checkpoint_pieces import Array, Shape, UnreadRows
from ...plugins.errors import BuildError
from ...plugins.number_formats import AFFINE, Scheme, keeps_blocks
from ...plugins.number_types import scales_of, to_e8m0
from ...plugins.ops.mxfp4_gate_up.blocks import codes_of_gguf, exponents_of_gguf
from ...plugins.ops.quantized_linear.packed_weights import gguf_codes, gguf_scales, row_scale_shape
from ...plugins.problems import counted, listed
from ..checkpoints.formats.fp8_with_scales import Loss
from ..checkpoints.target import StoredBlocks
from .quantization_schemes import may_keep_blocks, rounds_input, scheme_of, scheme_of_kept, serves_embedding
from .recipes import EMBEDDING, LM_HEAD
from .rounding import scale_and_min
from .rounding.coded_rows import Coding, row_magnitudes
from .rounding.in_order import in_order
from .rounding.numbers_to_codes import LARGEST, scales_for
from .weight_selection import Selection

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.targets.weight_roles import RoledWeight
    from .calibration.saved_ranges import Scales

Runs = Callable[[str, Shape], Iterator[UnreadRows]]


def indivisible_weights(selection: Selection, lowering: Lowering) -> list[str]:
    """Return the selected weights whose columns no block size of their type divides: they stay unquantized."""
    return list(OnTheFlyQuantizer(selection, lowering, lambda *_: iter(())).storage()[1])


@dataclass(frozen=True)
class OnTheFlyQuantizer:
    """``runs(weight, shape)`` yields an unquantized weight as runs of rows; ``ranges`` are calibrated.

    They provide static input scales, and the importance of each column's error.

    A weight that the checkpoint stores in ``blocks`` of a type that its format takes is used as stored.

    Of a weight, only its few scales stay in memory, and its block scales between the reading of its codes and their
    own: computing them takes time.
    """

    selection: Selection
    lowering: Lowering
    runs: Runs
    ranges: Scales | None = None
    blocks: Callable[[str, Shape], StoredBlocks | None] = lambda *_: None
    _scales: dict[str, Array] = field(default_factory=dict)
    _losses: dict[str, Loss] = field(default_factory=dict)
    _of_blocks: dict[str, list[Array]] = field(default_factory=dict)
    _found: dict[str, tuple[StoredBlocks, Scheme] | None] = field(default_factory=dict)

    def only(self, names: Collection[str]) -> OnTheFlyQuantizer:
        """Return this source for a graph that quantizes only these weights."""
        return replace(self, selection=self.selection.only(names))

    @property
    def key(self) -> Any:
        """The recipe in this backend's form, and the ranges used."""
        weights = self.selection.weights
        of_inputs: dict[str, Any] = {n: self._range(n) for n, weight in weights.items() if self._static(weight)}
        squares = {name: self._importance(weight) for name, weight in weights.items() if self._weighs(weight)}
        of_inputs |= {name: sha256(found.tobytes()).hexdigest() for name, found in squares.items() if found is not None}
        found = [self.selection.key, {n: asdict(self._scheme(w)) for n, w in weights.items()}, of_inputs]
        return [*found, "experts share a scale"] if self.lowering.experts_share_scale else found

    def uncalibrated(self) -> list[str]:
        """Return weights whose inputs need a static scale that ``ranges`` lacks; the build requires them."""
        return [
            name
            for name, weight in self.selection.weights.items()
            if self._static(weight) and (self.ranges is None or name not in self.ranges.inputs)
        ]

    def unweighted(self) -> list[str]:
        """Return weights that would be quantized with less error if the magnitudes of their inputs were known."""
        return [n for n, weight in self.selection.weights.items() if self._weighs(weight) and self._squares(n) is None]

    def check(self) -> None:
        """Raise ``BuildError`` if static scales are required but not calibrated, or if ranges do not match."""
        for name, weight in self.selection.weights.items():
            squares = self._squares(name)
            if squares is not None and squares.shape != weight.shape[-1:]:
                raise BuildError(
                    f"the calibrated mean squares of the input of {name} have the shape {list(squares.shape)}",
                    why=f"the weight has {weight.shape[-1]} columns",
                    fix="calibrate the model again",
                )
        uncalibrated = self.uncalibrated()
        if uncalibrated:
            raise BuildError(
                f"no calibrated range for the input of {counted(uncalibrated, 'weight')}: {listed(uncalibrated)}",
                why=f"--precision {self.selection.recipe.name} quantizes inputs with static, calibrated scales",
                fix="calibrate the model (`build` does so unless --scales is given)",
            )

    def storage(self) -> tuple[dict[str, QuantizedWeight], dict[str, str]]:
        """Return the storage of each weight; one whose columns no block size divides stays unquantized."""
        taken: dict[str, QuantizedWeight] = {}
        wide: dict[str, str] = {}
        for name, weight in self.selection.weights.items():
            how = self._scheme(weight)
            block = self._block(weight)
            if how.block and not block:
                columns = " and ".join(map(str, self._columns(weight)))
                wide[name] = f"no block size from {how.smallest} to {how.block} divides its {columns} columns"
                continue
            shape = self._scale_shape(weight) + ((how.of_block,) if how.of_block > 1 else ())
            if self._reusable_blocks(weight) and how.packed:
                shape = (*weight.shape[:-1], *row_scale_shape(how.packed, weight.shape[-1]))
            gathered = weight.role == EMBEDDING or (
                weight.role == LM_HEAD and serves_embedding(self.selection.recipe, self.lowering)
            )
            rounding = self._rounding(weight)
            taken[name] = QuantizedWeight(
                how.codes, shape, block, rounding, how.powers, gathered, how.packed, how.blocks
            )
        return taken, wide

    def codes(self, name: str, shape: Shape) -> Iterator[Array]:
        """Yield the codes of a weight, quantizing each run of rows as it is read."""
        weight = self.selection.weights[name]
        if stored := self._reusable_blocks(weight):
            packed_format = self._scheme(weight).packed
            codes = partial(gguf_codes, packed_format) if packed_format else codes_of_gguf
            yield from in_order(lambda _, rows: codes(rows), map(UnreadRows.of, stored.read()))
            return
        loss, of_blocks = self._losses.setdefault(name, Loss()), []
        for rows in in_order(self._coding(weight).coded, self.runs(name, shape)):
            loss.join(rows.loss)
            of_blocks += [] if rows.scales is None else [rows.scales]
            yield rows.codes
        self._of_blocks[name] = of_blocks

    def scales(self, name: str, shape: Shape) -> Iterator[Array]:
        """Yield the scales of a weight: block scales as they come, else all at once."""
        weight = self.selection.weights[name]
        if stored := self._reusable_blocks(weight):
            packed_format = self._scheme(weight).packed
            of_rows = partial(gguf_scales, packed_format) if packed_format else exponents_of_gguf
            yield from map(of_rows, stored.read())
            return
        if not self._scheme(weight).block:
            yield self._few(weight)
            return
        stored_scales = self._of_blocks.pop(name, None)
        for scales in stored_scales or in_order(self._coding(weight).scales, self.runs(name, shape)):
            yield to_e8m0(scales) if self._scheme(weight).powers else scales

    @property
    def losses(self) -> Mapping[str, float]:
        """The quantization error of every weight whose codes were read."""
        return {name: loss.relative for name, loss in self._losses.items()}

    def notes(self) -> list[str]:
        """Return notes of the calibration, if its ranges are used, and on weights used as stored by a wider recipe."""
        recipe, weights = self.selection.recipe, self.selection.weights
        expected = {name for name, weight in weights.items() if keeps_blocks(recipe.precision(weight.role))}
        kinds = Counter(kind for name, kind in self.kept().items() if name not in expected)
        notes = [f"{count} of the weights use the file's own {kind} blocks" for kind, count in kinds.items()]
        if unweighted := self.unweighted():
            notes.append(
                f"4-bit quantization of {counted(unweighted, 'weight')} without calibration: the errors of all columns "
                "count equally, so the accuracy loss is several times that of a calibrated build"
            )
        used = self.ranges is not None and any(map(self._static, self.selection.weights.values()))
        return notes + (list(self.ranges.facts.warnings) if self.ranges and used else [])

    def kept(self) -> dict[str, str]:
        """Weights used as stored, with the type of their blocks (``Q4_1``)."""
        found = {name: self._reusable_blocks(weight) for name, weight in self.selection.weights.items()}
        return {name: stored.kind for name, stored in found.items() if stored}

    def rounds(self) -> list[RoledWeight]:
        """The weights to quantize: those not used as stored."""
        return [weight for weight in self.selection.weights.values() if not self._reusable_blocks(weight)]

    def _scheme(self, weight: RoledWeight) -> Scheme:
        taken = self._reusable_blocks_and_scheme(weight)
        return taken[1] if taken else scheme_of(self.selection.recipe.precision(weight.role), self.lowering, weight)

    def _reusable_blocks(self, weight: RoledWeight) -> StoredBlocks | None:
        """Return the blocks of a weight used as stored, else None."""
        taken = self._reusable_blocks_and_scheme(weight)
        return taken[0] if taken else None

    def _reusable_blocks_and_scheme(self, weight: RoledWeight) -> tuple[StoredBlocks, Scheme] | None:
        """Return the blocks of a weight used as stored, with their scheme, else None."""
        if weight.name not in self._found:
            kind = self.selection.recipe.precision(weight.role)
            may = may_keep_blocks(kind, self.lowering, weight)
            stored = self.blocks(weight.name, weight.shape) if may else None
            how = scheme_of_kept(kind, self.lowering, stored.kind) if stored else None
            self._found[weight.name] = (stored, how) if stored and how else None
        return self._found[weight.name]

    def _static(self, weight: RoledWeight) -> bool:
        return self._rounds(weight) and not self._scheme(weight).powers

    def _rounds(self, weight: RoledWeight) -> bool:
        return self._scheme(weight).input is not None and rounds_input(self.selection.recipe, weight.role)

    def _range(self, name: str) -> float:
        return float(np.max(self.ranges.inputs[name])) if self.ranges and name in self.ranges.inputs else 0.0

    def _weighs(self, weight: RoledWeight) -> bool:
        """Return True if quantizing minimizes the error weighted by the magnitude of the inputs."""
        return self._scheme(weight).packed == AFFINE and not self._reusable_blocks(weight)

    def _squares(self, name: str) -> Array | None:
        """Return the mean square of every input of a weight, [columns]; None if not measured."""
        return self.ranges.squares.get(name) if self.ranges else None

    def _importance(self, weight: RoledWeight) -> Array | None:
        """Return the weight of an error per column, float32 [blocks, block columns]; None if all are equal."""
        squares = self._squares(weight.name)
        return None if squares is None else scale_and_min.importance(squares, self._scheme(weight).block)

    def _rounding(self, weight: RoledWeight) -> Rounding | None:
        how = self._scheme(weight)
        if how.input is None or not self._rounds(weight):
            return None
        if how.powers:
            return Rounding(how.input, None, how.block)
        return Rounding(how.input, float(scales_of(self._range(weight.name), LARGEST[how.input])))

    def _block(self, weight: RoledWeight) -> int:
        """Columns per scale. Both stacks of experts use the same: one node of the backend multiplies both."""
        return self._scheme(weight).block_for(math.gcd(*self._columns(weight)))

    def _columns(self, weight: RoledWeight) -> list[int]:
        stacks = {each.shape[-1] for each in self.selection.weights.values() if each.role == weight.role == "experts"}
        return sorted(stacks | {weight.shape[-1]}, reverse=True)

    def _scale_shape(self, weight: RoledWeight) -> Shape:
        how, shape = self._scheme(weight), weight.shape
        if how.block:
            return (*shape[:-1], math.ceil(shape[-1] / self._block(weight)))
        # With one scale per stacked matrix, TensorRT dequantizes before the matmul, except in its own expert layer.
        is_stack = len(shape) > 2 and not self.lowering.has_expert_layer
        of_rows = how.group == "row" or (is_stack and self._rounds(weight))
        if self.lowering.experts_share_scale and weight.role == "experts" and how.group != "row":
            return ()
        return shape[:-1] if of_rows else shape[:-2]

    def _coding(self, weight: RoledWeight) -> Coding:
        """Return the settings for quantizing its rows; if it has few scales, they are computed first."""
        how, block, wide = self._scheme(weight), self._block(weight), self.selection.recipe.wide
        few = None if how.block else self._few(weight)
        importance = self._importance(weight) if how.packed == AFFINE else None
        return Coding(weight.name, weight.shape, how, wide, block, few, importance)

    def _few(self, weight: RoledWeight) -> Array:
        """Compute the scales of a weight with few of them, in one pass, once."""
        if weight.name not in self._scales:
            shape, how = self._scale_shape(weight), self._scheme(weight)
            amax = np.zeros(math.prod(shape), np.float32)
            of_group, at = math.prod(weight.shape[:-1]) // len(amax), 0
            for largest in in_order(partial(row_magnitudes, weight.shape[-1]), self.runs(weight.name, weight.shape)):
                np.maximum.at(amax, np.arange(at, at + len(largest)) // of_group, largest)
                at += len(largest)
            self._scales[weight.name] = scales_for(amax, how.codes, how.largest).reshape(shape)
        return self._scales[weight.name]
