"""One component of an engine, target or drafter: the sources of its graph and of its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...graphs.drafters import DrafterSpec
from ...graphs.drafters.tensor_layout import EMBEDDING
from ...graphs.lowering import TENSORRT, Lowering
from ...graphs.targets.checkpoint_pieces import Array, Shape
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.head_weights import HeadWeights
from ..checkpoints.target import Target
from ..precision.kv_cache_scales import LowPrecisionCaches, cache_scales
from ..precision.recipes import Recipe

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...graphs.trace import Dtype
    from ..precision.calibration.saved_ranges import Scales
    from ..precision.weight_source import WeightSource

_STORAGE = ("quantization_config", "compression_config")  # the storage of weights does not affect the structure


@dataclass(frozen=True)
class Component:
    """The graph to trace and the source of its weights; ``facts`` is everything that the structure depends on.

    ``check(shapes)`` rejects a checkpoint that lacks weights of the graph; ``read(weight, shape)`` yields one as
    consecutive runs of rows; ``position(weight, shape)`` returns the file and the offset of its first row. ``sources``
    are all checkpoints that weights are read from. ``quantized`` is set for a recipe with quantized weights, ``caches``
    for one with low-precision caches. ``targets_embedding`` names the weight of a drafter that the target's graph has
    too, if there is one.
    """

    name: str
    checkpoint: Checkpoint
    facts: Mapping[str, Any]
    trace: Callable[[Dtype], ir.Model]
    check: Callable[[Mapping[str, Shape]], None]
    read: Callable[[str, Shape], Iterator[Array]]
    position: Callable[[str, Shape], tuple[str, int]]
    sources: tuple[Checkpoint, ...]
    quantized: WeightSource | None = None
    caches: LowPrecisionCaches | None = None
    targets_embedding: str = ""


def target_component(
    target: Target,
    recipe: Recipe | None = None,
    lowering: Lowering = TENSORRT,
    ranges: Scales | None = None,
) -> Component:
    """Return the target as its family traces it, with weights assembled as the family defines.

    A ``recipe`` with quantized weights keeps those of an FP8 checkpoint, and quantizes others for ``lowering``;
    ``ranges`` are the calibrated ranges of their inputs. Raises ``BuildError`` for an unsuitable checkpoint.
    """

    def trace(dtype: Dtype) -> ir.Model:
        from ...graphs.trace import trace_target

        target.check()  # before tracing, which takes longer
        return trace_target(target.skeleton, target.spec, dtype)

    quantized = None
    if recipe:
        from ..precision.weight_source import of_target

        quantized = of_target(target, recipe, lowering, ranges)
    if quantized:
        quantized.check()  # before tracing, which takes longer
    caches = LowPrecisionCaches.of("target", recipe, lambda: cache_scales(target, ranges)) if recipe else None
    structure = {name: value for name, value in target.config.items() if name not in _STORAGE}
    facts = {"config": structure, "spec": asdict(target.spec)}
    checkpoint, check = target.checkpoint, target.sources.check

    def position(name: str, shape: Shape) -> tuple[str, int]:
        return checkpoint.position(target.stored_as(name, shape))

    return Component("target", checkpoint, facts, trace, check, target.read, position, (checkpoint,), quantized, caches)


def drafter_component(
    checkpoint: Checkpoint,
    head: DrafterSpec,
    target: Target,
    recipe: Recipe | None = None,
    lowering: Lowering = TENSORRT,
    *,
    shares: bool = False,
) -> Component:
    """Return the P-EAGLE head for its target, which provides the auxiliary hidden states and weights that it lacks.

    A ``recipe`` can quantize the drafter's matrices and its caches. ``shares``: a drafter with the target's embedding
    reads it from the target's file.
    """

    def trace(dtype: Dtype) -> ir.Model:
        from ...graphs.trace import trace_drafter

        return trace_drafter(head, target.spec, dtype)

    weights = HeadWeights(checkpoint, head, target)

    def check(_: Mapping[str, Shape]) -> None:
        """Do nothing: ``read_drafter`` has compared every shape."""

    quantized = None
    if recipe:
        from ..precision.weight_source import of_drafter

        quantized = of_drafter(head, recipe, lowering, weights.runs)
    # Its trace depends on the target only through the width of the features.
    facts = {"head": asdict(head), "features": len(target.spec.taps) * target.spec.hidden_size}
    shared = EMBEDDING if shares and weights.has_targets_embedding else ""
    return Component(
        "drafter", checkpoint, facts, trace, check, weights.read, weights.position, weights.sources, quantized,
        LowPrecisionCaches.of("drafter", recipe) if recipe else None, shared,
    )  # fmt: skip
