"""One half of an engine, target or drafter: traced once, then lowered and given its weights, each a kept stage."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graphs.drafters import DrafterSpec
from ...graphs.lowering import TENSORRT, Lowering
from ...graphs.targets import TargetSpec, family_for
from ...graphs.targets.sources import Array, Shape, Sources
from ...plugins.errors import EnvironmentProblem
from ..checkpoints.checkpoint import Checkpoint
from ..console.progress import Progress
from ..precision.recipes import Recipe
from ..store.stages import Stage, StageStore

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...graphs.trace import Dtype
    from ..precision.calibration import Scales
    from ..precision.provider import Provider

EXPORT_PACKAGES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")
MODEL = "model.onnx"
PRECISION = "precision.json"
_STORAGE = ("quantization_config", "compression_config")  # how weights are stored: nothing to the structure
SEMANTIC = "semantic.onnx"


@dataclass(frozen=True)
class Half:
    """What to trace and where its weights come from. ``facts`` is everything that the structure depends on.

    ``check(shapes)`` refuses a checkpoint that does not hold the graph's weights; ``read(weight, shape)`` gives one of
    them as consecutive runs of rows; ``key(weight)`` names the tensor that its first rows are stored as. ``narrow``
    is there for a recipe that keeps weights in narrow types, ``caches`` for one with FP8 caches: their scales by name.
    ``emulates_caches`` has keys and values rounded to the codes of such caches and kept wide, for ONNX Runtime.
    """

    name: str
    checkpoint: Checkpoint
    facts: Mapping[str, Any]
    trace: Callable[[Dtype], ir.Model]
    check: Callable[[Mapping[str, Shape]], None]
    read: Callable[[str, Shape], Iterator[Array]]
    key: Callable[[str, Shape], str]
    narrow: Provider | None = None
    caches: Mapping[str, float] | None = None
    emulates_caches: bool = False


@dataclass(frozen=True)
class Compiled:
    """A half's runnable graph and its I/O contract. ``traced`` and ``attached`` are the stages it came from.

    ``precision`` is what ``compiler.precision`` proved of a graph with narrow weights.
    """

    traced: Stage
    attached: Stage
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: Mapping[str, Any] | None = None


def target_half(
    checkpoint: Checkpoint,
    spec: TargetSpec,
    recipe: Recipe | None = None,
    lowering: Lowering = TENSORRT,
    ranges: Scales | None = None,
) -> Half:
    """The target as its family traces it, its weights put together as the family says.

    A ``recipe`` with narrow weights takes them from an FP8 checkpoint as they are, and rounds those of a wide one as
    ``lowering`` wants them; ``ranges`` are the calibrated ones of their inputs. Raises ``BuildError`` for a checkpoint
    that it cannot be made from.
    """
    sources = Sources(family_for(checkpoint.config), checkpoint.config, checkpoint.shapes)

    def trace(dtype: Dtype) -> ir.Model:
        from ...graphs.targets.skeleton import weight_shapes
        from ...graphs.trace import trace_target

        sources.check(weight_shapes(checkpoint.config))  # before the minutes that tracing takes
        return trace_target(checkpoint.config, spec, dtype)

    def read(name: str, shape: Shape) -> Iterator[Array]:
        return sources.read(name, shape, checkpoint.pieces)

    def key(name: str, shape: Shape) -> str:
        return sources.key(sources.pieces(name, shape)[0].keys[0])

    narrow = None
    if recipe and recipe.narrow:
        from ..precision.source import of_target

        narrow = of_target(checkpoint, recipe, lowering, ranges)
    if narrow:
        narrow.check()  # before the minutes that tracing takes
    caches = None
    if recipe and recipe.kv_cache == "fp8":
        from ..precision.caches import cache_scales

        caches = cache_scales(checkpoint, len(spec.caches), ranges)
    structure = {name: value for name, value in checkpoint.config.items() if name not in _STORAGE}
    facts = {"config": structure, "spec": asdict(spec)}
    return Half("target", checkpoint, facts, trace, sources.check, read, key, narrow, caches)


def drafter_half(
    checkpoint: Checkpoint,
    head: DrafterSpec,
    spec: TargetSpec,
    recipe: Recipe | None = None,
    lowering: Lowering = TENSORRT,
) -> Half:
    """The P-EAGLE head on its target; the graph names weights by module, the head knows their names in the file.

    A ``recipe`` whose drafter is narrow has the matrices of its layers so, and multiplies them wide.
    """

    def trace(dtype: Dtype) -> ir.Model:
        from ...graphs.trace import trace_drafter

        return trace_drafter(head, spec, dtype)

    def key(name: str, _: Shape) -> str:
        return head.keys.get(name, name)

    def read(name: str, shape: Shape) -> Iterator[Array]:
        return checkpoint.pieces(key(name, shape))

    def check(_: Mapping[str, Shape]) -> None:
        """``read_drafter`` has compared every shape."""

    narrow = None
    if recipe and recipe.drafter != recipe.wide:
        from ..precision.source import of_drafter

        narrow = of_drafter(head, recipe, lowering, read)
    return Half("drafter", checkpoint, {"head": asdict(head), "spec": asdict(spec)}, trace, check, read, key, narrow)


def product_version() -> str:
    """Of this package, where it is installed."""
    try:
        return version("peagle-compile")
    except PackageNotFoundError:
        return "unknown"


def export_versions() -> dict[str, str]:
    """Versions of the packages that trace. Raises ``EnvironmentProblem`` when the ``[export]`` extra is absent."""
    found, missing = {}, []
    for package in EXPORT_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        raise EnvironmentProblem(
            f"building needs packages that are not installed: {', '.join(missing)}",
            why="the base installation only runs engines",
            fix="pip install 'peagle-compile[export]'",
        )
    return found


def trace(store: StageStore, half: Half, dtype: Dtype, progress: Progress) -> Stage:
    """The half's semantic graph, without weights; ``dtype`` is that of weights, caches and features."""

    def make(folder: Path) -> None:
        from ...graphs.store import save

        save(half.trace(dtype), folder / SEMANTIC)

    with progress.step(f"trace {half.name}"):
        return store.run(f"trace-{half.name}", [half.facts, dtype, export_versions()], make)


def attach(
    store: StageStore, half: Half, traced: Stage, *, lowering: Lowering, cache_length: int, progress: Progress
) -> Compiled:
    """The half's graph as its backend runs it, with its weights."""
    key: list[Any] = [traced.path.name, lowering.name, cache_length, half.checkpoint.fingerprint]
    key += [half.narrow.key] if half.narrow else []
    key += [half.caches, half.emulates_caches] if half.caches else []

    def make(folder: Path) -> None:
        from ...graphs.lowering import lower
        from ...graphs.rounding import narrow_caches, round_caches
        from ...graphs.store import load, save
        from ...graphs.weights import attach as stream
        from ...graphs.weights import refer, wanted
        from ..precision.proof import Narrowed
        from ..store.durable import require_space

        semantic, copy = load(traced.path / SEMANTIC), load(traced.path / SEMANTIC)
        shapes = wanted(semantic)
        half.check(shapes)
        narrowed = Narrowed.of(half.narrow, semantic, copy) if half.narrow else None
        if half.caches:
            for model in (semantic, copy):
                (round_caches if half.emulates_caches else narrow_caches)(model, half.caches)
        lowered = lower(copy, lowering, cache_length=cache_length)
        streams = narrowed.streams if narrowed else {}
        if narrowed:
            narrowed.prove(lowered, lowering)
        require_space(store.root, lowered.total_bytes)

        def weight_of(name: str) -> str:
            return streams[name].weight if name in streams else name

        def read(name: str) -> Iterator[Array]:
            shape = shapes[weight_of(name)]
            return narrowed.read(name, shape) if narrowed and name in streams else half.read(name, shape)

        with progress.step(f"attach {half.name} weights", lowered.total_bytes) as advance:
            runs = stream(
                lowered,
                read,
                folder / MODEL,
                advance,
                lambda name: half.checkpoint.position(half.key(weight_of(name), shapes[weight_of(name)])),
            )
        refer(semantic, runs, f"{MODEL}.data", cache_length)
        save(semantic, folder / SEMANTIC)
        if narrowed:
            (folder / PRECISION).write_text(json.dumps(narrowed.record(), indent=2) + "\n")

    attached = store.run(f"attach-{half.name}", key, make, needed=_weight_bytes(half.checkpoint))
    precision = None
    if half.narrow:  # whose table is this build's: what of it the graph does not depend on may be another's
        precision = json.loads((attached.path / PRECISION).read_bytes()) | {"recipe": half.narrow.recipe.record()}
    return Compiled(traced, attached, *_contract(attached.path / MODEL), precision)


def noted(compiled: Mapping[str, Compiled]) -> list[str]:
    """What the proofs of narrow graphs, by half, have to tell; of the drafter's it is said whose they are."""
    return [
        note if name == "target" else f"{name}: {note}"
        for name, done in compiled.items()
        if done.precision
        for note in done.precision["notes"]
    ]


def _contract(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    import onnx

    graph = onnx.load_model(path, load_external_data=False).graph
    return tuple(value.name for value in graph.input), tuple(value.name for value in graph.output)


def _weight_bytes(checkpoint: Checkpoint) -> int:
    """What the weights take in FP32."""
    return 4 * sum(math.prod(shape) for shape in checkpoint.shapes.values())
