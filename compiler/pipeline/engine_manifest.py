"""Manifest of an engine under construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...engines.folder.manifest import BUILT_FORMAT, Manifest
from ...engines.folder.records import BackendRecord, Cache, Evidence, Origin, Part, Shapes
from ...graphs.targets import CacheSpec
from ...plugins.number_formats import FP32, NUMBER_FORMATS
from ...plugins.tensorrt.products import PRODUCTS
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
        name: replace(part, file=f"{name}/{PLAN}", plan=plans.by_component[name].facts.plan) if plans else part
        for name, (origin, caches) in _origins(inputs).items()
        for part in (part_of(name, name, origin, caches, graphs.compiled[name], recipe),)
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
        format_version=BUILT_FORMAT,
        method=inputs.method.name,
    )


def part_of(
    component: str, folder: str, origin: Origin, caches: Sequence[CacheSpec], compiled: Compiled, recipe: Recipe
) -> Part:
    """Return the record of a component's graph, placed in ``folder`` unless it must be next to another graph."""
    kind = _cache_dtype(component, recipe)
    return Part(
        origin=origin,
        file=f"{compiled.files.folder or folder}/{compiled.files.model}",
        inputs=compiled.inputs,
        outputs=compiled.outputs,
        caches=tuple(Cache(cache.heads, cache.head_dim, kind) for cache in caches),
    )


def origin_of_head(name: str, head: Checkpoint) -> Origin:
    """Return the origin of a drafter that the command line calls ``name``."""
    architectures = head.config.get("architectures") or ["unnamed"]
    return Origin(name, head.fingerprint, str(head.source), str(architectures[0]))


def _origins(inputs: Inputs) -> dict[str, tuple[Origin, tuple[CacheSpec, ...]]]:
    """Return the origin of each component, and the caches of its layers."""
    resolved, spec, checkpoint = inputs.resolved, inputs.target.spec, inputs.target.checkpoint
    target = Origin(resolved.model, checkpoint.fingerprint, str(checkpoint.source), spec.architecture)
    components = {"target": (target, spec.caches)}
    if inputs.drafter:
        of_head, head = inputs.drafter
        components["drafter"] = (origin_of_head(resolved.draft or resolved.model, of_head), head.caches)
    return components


def _cache_dtype(component: str, recipe: Recipe) -> str:
    """Return the type of low-precision caches; empty if the caches have the graph's type."""
    kind = recipe.cache_type(component)
    return "" if kind == recipe.wide else NUMBER_FORMATS[kind].number_type.name


def _evidence(
    platform: BuildPlatform, recipe: Recipe, inputs: Inputs, versions: Mapping[str, str]
) -> tuple[Evidence, ...]:
    """Return the evidence that an engine of this kind works.

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
    """Return the evidence for plans, if they were built ahead of time."""
    if not PRODUCTS[platform.backend].builds_ahead:
        return ()
    how = f"built ahead of time by {platform.title} {versions[platform.backend]} for {', '.join(platform.gpus)}"
    return (Evidence("aot", how if platform.runs_here else f"{how}; not run"),)
