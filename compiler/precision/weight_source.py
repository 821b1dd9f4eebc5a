"""Sources of a graph's quantized weights: a quantized checkpoint, or quantization during the build."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...graphs.targets.checkpoint_pieces import Array, Shape, UnreadRows
from ...plugins.errors import BuildError, UsageError
from ...plugins.number_formats import NUMBER_FORMATS, format_stored_as
from ...plugins.number_types import E4M3
from ...plugins.problems import counted
from ..checkpoints.gguf.weights import rounded_types
from ..checkpoints.target import Target
from .kv_cache_scales import stored_cache_scales
from .on_the_fly_quantizer import OnTheFlyQuantizer
from .quantization_schemes import EXPERTS, may_keep_blocks, scheme_of_kept
from .recipes import RECIPES, Recipe
from .weight_selection import Selection, candidates_of
from .weights_stored_quantized import StoredFp8

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ...graphs.lowering import Lowering
    from ...graphs.quantization import QuantizedWeight
    from ...graphs.targets.weight_roles import RoledWeight
    from .calibration.saved_ranges import Scales


class WeightSource(Protocol):
    """Provides codes and scales of the quantized weights of one graph."""

    @property
    def selection(self) -> Selection:
        """The weights that the recipe quantizes."""

    @property
    def key(self) -> Any:
        """The graph's inputs besides the checkpoint, as JSON."""

    def check(self) -> None:
        """Raise ``BuildError`` for an impossible combination, before tracing, which takes minutes."""

    def only(self, names: Collection[str]) -> WeightSource:
        """Return this source for a graph that quantizes only these weights."""

    def storage(self) -> tuple[dict[str, QuantizedWeight], dict[str, str]]:
        """Return the storage of each weight, and reasons for those left unquantized."""

    def codes(self, name: str, shape: Shape) -> Iterator[Array]:
        """Yield the codes of one weight as consecutive runs of rows, in the type of ``storage``."""

    def scales(self, name: str, shape: Shape) -> Iterator[Array]:
        """Yield the scales of one weight, float32, as consecutive runs."""

    @property
    def losses(self) -> Mapping[str, float]:
        """The relative quantization error by tensor; complete once all codes were read."""

    def rounds(self) -> Sequence[RoledWeight]:
        """Return the weights that the build rounds; the others are used with the values that the checkpoint stores."""

    def notes(self) -> list[str]:
        """Return further notes for the user."""


def of_target(
    target: Target, recipe: Recipe, lowering: Lowering, ranges: Scales | None = None
) -> StoredFp8 | OnTheFlyQuantizer | None:
    """Return the source for a target in ``recipe``; None if it quantizes nothing.

    ``ranges`` are calibrated input ranges. Raises ``BuildError`` for a checkpoint in another quantized type, because
    nothing is quantized twice.
    """
    if not recipe.quantized_type:
        return None
    selection = selection_of(target, recipe, lowering)
    stored = [key for name, weight in selection.weights.items() for key in _in_fp8(target, name, weight.shape)]
    if stored and all(_takes_e4m3(kind) for kind in recipe.quantized_types):
        return StoredFp8(target, selection, lowering, ranges)
    if stored:
        raise _quantized_twice(target, recipe, stored)
    return OnTheFlyQuantizer(selection, lowering, target.runs, ranges, target.blocks)


def selection_of(target: Target, recipe: Recipe, lowering: Lowering) -> Selection:
    """Return the weights of a target that ``recipe`` quantizes. Raises ``UsageError`` if exclusions leave none."""
    blocks = kept_blocks(target, recipe, lowering) if recipe.keeps_blocks else None
    selection = Selection.of_target(target.skeleton.weights, recipe, blocks)
    if not selection.weights:
        raise UsageError(
            "--exclude leaves nothing to quantize", fix=f"exclude fewer modules, or build in {recipe.wide}"
        )
    return selection


def kept_blocks(target: Target, recipe: Recipe, lowering: Lowering) -> dict[str, str]:
    """Return the weights that a ``recipe`` takes in their stored blocks, exclusions aside, with the type of these.

    One kernel multiplies both stacks of routed experts, so they are taken together or not at all.
    """
    has_blocks = lowering.is_tensorrt or (lowering.packs and target.checkpoint.rounded)
    if not (has_blocks and recipe.quantized_type):
        return {}
    found: dict[str, str] = {}
    candidates = candidates_of(target.skeleton.weights, recipe)
    for name, weight in candidates.items():
        precision = recipe.precision(weight.role)
        stored = target.blocks(name, weight.shape) if may_keep_blocks(precision, lowering, weight) else None
        if stored and scheme_of_kept(precision, lowering, stored.kind):
            found[name] = stored.kind
    stacks = [name for name, weight in candidates.items() if weight.role == EXPERTS]
    incomplete = {name.rpartition(".")[0] for name in stacks if name not in found}
    return {
        name: kind for name, kind in found.items() if name not in stacks or name.rpartition(".")[0] not in incomplete
    }


def of_drafter(
    head: DrafterSpec, recipe: Recipe, lowering: Lowering, runs: Callable[[str, Shape], Iterator[UnreadRows]]
) -> OnTheFlyQuantizer | None:
    """Return the source for a drafter; None if it is not quantized. The inputs of its matrices are not quantized."""
    if recipe.drafter == recipe.wide:
        return None
    return OnTheFlyQuantizer(Selection.of_drafter(head, recipe, lowering), lowering, runs)


def uncalibrated(target: Target, recipe: Recipe, lowering: Lowering) -> list[str]:
    """Return what a target in ``recipe`` needs calibrated and lacks: inputs by their weight, caches."""
    source = of_target(target, recipe, lowering)
    caches = recipe.calibrates_caches and not stored_cache_scales(target)
    return (source.uncalibrated() if source else []) + ["the KV cache"] * caches


def unweighted(target: Target, recipe: Recipe, lowering: Lowering) -> list[str]:
    """Return the weights that would lose less if the magnitudes of their inputs were measured."""
    source = of_target(target, recipe, lowering)
    return source.unweighted() if isinstance(source, OnTheFlyQuantizer) else []


def requantized(target: Target, recipe: Recipe, lowering: Lowering) -> tuple[str, ...]:
    """Return the quantized types of a GGUF file that ``recipe`` quantizes again, without those used as stored."""
    checkpoint, sources = target.checkpoint, target.sources
    if not (lowering.packs and checkpoint.rounded and recipe.quantized_type):
        return checkpoint.rounded
    selection = selection_of(target, recipe, lowering)
    again = OnTheFlyQuantizer(selection, lowering, target.runs, blocks=target.blocks).rounds()
    pieces = (piece for weight in again for piece in sources.pieces(weight.name, weight.shape))
    keys = {sources.key(key) for piece in pieces for key in piece.keys}
    return rounded_types({key: checkpoint.tensors[key] for key in keys if key in checkpoint.tensors})


def is_whole_fp8(target: Target, lowering: Lowering) -> bool:
    """Return True if a checkpoint stores all that the recipe of its E4M3 codes needs, including input scales."""
    if not any(target.checkpoint.fp8(name) for name in target.checkpoint.tensors):
        return False
    own = format_stored_as(E4M3.safetensors)
    if own is None:
        return False
    recipe = RECIPES[own.name]
    source = of_target(target, recipe, lowering)
    if not isinstance(source, StoredFp8) or source.uncalibrated():
        return False
    _, wide = source.storage()
    selected = source.selection
    return sum(selected.weights[name].count for name in wide) <= (1 - recipe.share) * selected.count


def _takes_e4m3(kind: str) -> bool:
    """Return True if a format uses the E4M3 codes of checkpoints as stored."""
    return E4M3.safetensors in NUMBER_FORMATS[kind].takes


def _in_fp8(target: Target, name: str, shape: Shape) -> list[str]:
    """Return the FP8 tensors among those that form a weight of the graph."""
    sources = target.sources
    keys = (sources.key(key) for piece in sources.pieces(name, shape) for key in piece.keys)
    return [key for key in keys if target.checkpoint.fp8(key) is not None]


def _quantized_twice(target: Target, recipe: Recipe, stored: Sequence[str]) -> BuildError:
    others = sorted(kind for kind in recipe.quantized_types if not _takes_e4m3(kind))
    own = format_stored_as(E4M3.safetensors)
    return BuildError(
        f"{target.folder} is already quantized: it stores {counted(stored)} in FP8, among them {stored[0]}",
        why=f"{' and '.join(others)} cannot be added: quantizing twice adds a second error to the first, "
        "and one graph takes its quantized weights from one source",
        fix=f"build with --precision {own.name if own else ''} alone, or from the BF16 or FP16 checkpoint of the model",
    )
