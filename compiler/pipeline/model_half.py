"""One half of an engine, target or drafter: what its graph is traced from, and where its weights come from."""

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

_STORAGE = ("quantization_config", "compression_config")  # how weights are stored: nothing to the structure


@dataclass(frozen=True)
class Half:
    """What to trace and where its weights come from. ``facts`` is everything that the structure depends on.

    ``check(shapes)`` refuses a checkpoint that does not hold the graph's weights; ``read(weight, shape)`` gives one of
    them as consecutive runs of rows; ``position(weight, shape)`` is the file and the offset of the first ones.
    ``sources`` are all checkpoints that weights are read from.
    ``quantized`` is there for a recipe that keeps weights in fewer bits, ``caches`` for one
    with narrower caches.
    ``targets_embedding`` is the name of a weight of a drafter that the target's graph has too, if there is one.
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


def target_half(
    target: Target,
    recipe: Recipe | None = None,
    lowering: Lowering = TENSORRT,
    ranges: Scales | None = None,
) -> Half:
    """The target as its family traces it, its weights put together as the family says.

    A ``recipe`` with quantized weights takes them from an FP8 checkpoint as they are, and rounds those of a wide one as
    ``lowering`` wants them; ``ranges`` are the calibrated ones of their inputs. Raises ``BuildError`` for a checkpoint
    that it cannot be made from.
    """

    def trace(dtype: Dtype) -> ir.Model:
        from ...graphs.trace import trace_target

        target.check()  # before the minutes that tracing takes
        return trace_target(target.skeleton, target.spec, dtype)

    quantized = None
    if recipe:
        from ..precision.weight_source import of_target

        quantized = of_target(target, recipe, lowering, ranges)
    if quantized:
        quantized.check()  # before the minutes that tracing takes
    caches = LowPrecisionCaches.of("target", recipe, lambda: cache_scales(target, ranges)) if recipe else None
    structure = {name: value for name, value in target.config.items() if name not in _STORAGE}
    facts = {"config": structure, "spec": asdict(target.spec)}
    checkpoint, check = target.checkpoint, target.sources.check

    def position(name: str, shape: Shape) -> tuple[str, int]:
        return checkpoint.position(target.stored_as(name, shape))

    return Half("target", checkpoint, facts, trace, check, target.read, position, (checkpoint,), quantized, caches)


def drafter_half(
    checkpoint: Checkpoint,
    head: DrafterSpec,
    target: Target,
    recipe: Recipe | None = None,
    lowering: Lowering = TENSORRT,
    *,
    shares: bool = False,
) -> Half:
    """The P-EAGLE head on its target, which has the taps; weights that the head has none of are the target's.

    A ``recipe`` whose drafter is quantized has its matrices so, and one with narrower caches its caches. ``shares``:
    one whose embedding is the target's is to read it from the target's file.
    """

    def trace(dtype: Dtype) -> ir.Model:
        from ...graphs.trace import trace_drafter

        return trace_drafter(head, target.spec, dtype)

    weights = HeadWeights(checkpoint, head, target)

    def check(_: Mapping[str, Shape]) -> None:
        """``read_drafter`` has compared every shape."""

    quantized = None
    if recipe:
        from ..precision.weight_source import of_drafter

        quantized = of_drafter(head, recipe, lowering, weights.runs)
    # All that its trace knows of the target is how wide the features are.
    facts = {"head": asdict(head), "features": len(target.spec.taps) * target.spec.hidden_size}
    shared = EMBEDDING if shares and weights.has_targets_embedding else ""
    return Half(
        "drafter", checkpoint, facts, trace, check, weights.read, weights.position, weights.sources, quantized,
        LowPrecisionCaches.of("drafter", recipe) if recipe else None, shared,
    )  # fmt: skip
