"""Manifest of an engine under construction."""

from __future__ import annotations

from collections.abc import Mapping

from ...engines.folder.manifest import FORMAT_VERSION, Manifest
from ...engines.folder.records import BackendRecord, Cache, Evidence, Origin, Part, Shapes
from ...graphs.targets import CacheSpec
from ...plugins.number_formats import FP32, NUMBER_FORMATS
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.target_and_drafter import Inputs
from ..hardware.packages import product_version
from ..precision.calibration.obtain_ranges import in_words
from ..precision.recipes import MULTIPLIED, RECIPES, STORED, Recipe
from ..request.build_plan import BuildPlan
from ..request.build_platform import BuildPlatform
from .graph_stages import Compiled
from .plan_stages import PLAN, Plans
from .shared_steps import Graphs

_VERIFIED = RECIPES[FP32.name]  # registered pairs were verified in it


def engine_manifest(
    plan: BuildPlan, inputs: Inputs, graphs: Graphs, plans: Plans | None, versions: Mapping[str, str]
) -> Manifest:
    """Return the manifest as known before any file is placed."""
    platform, recipe, speculation = plan.platform, plan.recipe, plan.speculation
    spec, head, ranges = inputs.target.spec, inputs.head, graphs.ranges
    first, stored = graphs.account().lead_sentence(plans.products() if plans else {}), inputs.target.checkpoint.stored
    parts = {
        name: Part(
            origin=origin,
            file=f"{name}/{PLAN}" if plans else _graph(name, graphs.compiled[name]),
            inputs=graphs.compiled[name].inputs,
            outputs=graphs.compiled[name].outputs,
            caches=tuple(Cache(cache.heads, cache.head_dim, _cache_dtype(name, recipe)) for cache in caches),
            plan=plans.halves[name].facts.plan if plans else None,
        )
        for name, (origin, caches) in _origins(inputs).items()
    }
    return Manifest(
        product_version=product_version(),
        target=parts["target"],
        drafter=parts.get("drafter"),
        backend=BackendRecord(platform.backend, platform.lowering.name, versions, platform.gpus),
        precision=({MULTIPLIED: first} if first else {})
        | recipe.record()
        | ({"calibration": in_words(ranges)} if ranges else {})
        | ({STORED: stored} if stored else {}),
        speculation=speculation,
        shapes=Shapes(
            max_seq_len=plan.max_seq_len,
            cache_length=plan.cache_length,
            hidden_size=spec.hidden_size,
            vocab_size=spec.vocab_size,
            draft_vocab_size=head.draft_vocab_size if head else 0,
            taps=spec.taps,
        ),
        eos_token_ids=inputs.eos_token_ids,
        files={},
        evidence=_evidence(platform, recipe, inputs, versions),
        format_version=FORMAT_VERSION,
        method=inputs.method.name,
    )


def _origins(inputs: Inputs) -> dict[str, tuple[Origin, tuple[CacheSpec, ...]]]:
    """Return the origin of each half, and the caches of its layers."""
    resolved, spec, checkpoint = inputs.resolved, inputs.target.spec, inputs.target.checkpoint
    target = Origin(resolved.model, checkpoint.fingerprint, str(checkpoint.source), spec.architecture)
    halves = {"target": (target, spec.caches)}
    if inputs.drafter:
        of_head, head = inputs.drafter
        name = resolved.draft or resolved.model
        origin = Origin(name, of_head.fingerprint, str(of_head.source), _architecture(of_head))
        halves["drafter"] = (origin, head.caches)
    return halves


def _graph(half: str, compiled: Compiled) -> str:
    """Return the path of a graph in the engine."""
    return f"{compiled.files.folder or half}/{compiled.files.model}"


def _cache_dtype(half: str, recipe: Recipe) -> str:
    """Return the type of low-precision caches; empty if the caches have the graph's type."""
    kind = recipe.cache_type(half)
    return "" if kind == recipe.wide else NUMBER_FORMATS[kind].number_type.name


def _evidence(
    platform: BuildPlatform, recipe: Recipe, inputs: Inputs, versions: Mapping[str, str]
) -> tuple[Evidence, ...]:
    """Return the evidence that such an engine works.

    Registered pairs were verified on ONNX Runtime in FP32, which proves nothing for other number types. A plan is only
    known to build. No level says that full TensorRT built it on its GPU.
    """
    if platform.makes_plans:
        return of_plans(platform, versions)
    pair = inputs.resolved.pair
    if pair is None or recipe.record() != _VERIFIED.record():
        return ()
    return tuple(Evidence(*item) for item in pair.evidence)


def of_plans(platform: BuildPlatform, versions: Mapping[str, str]) -> tuple[Evidence, ...]:
    """Return the evidence for plans: TensorRT-RTX built them ahead of time."""
    if platform.backend != "tensorrt-rtx":
        return ()
    how = f"{platform.title} {versions[platform.backend]} built it ahead of time for {', '.join(platform.gpus)}"
    return (Evidence("aot", how if platform.runs_here else f"{how}; not run"),)


def _architecture(checkpoint: Checkpoint) -> str:
    named = checkpoint.config.get("architectures") or ["unnamed"]
    return str(named[0])
