"""The manifest of an engine in the making."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...engines.folder.manifest import Backend, Cache, Evidence, Manifest, Origin, Part, Shapes, Speculation
from ...plugins.spec import FLOAT8
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.pair import Inputs
from ..hardware.packages import product_version
from ..precision.calibration.ranges import in_words
from ..precision.recipes import RECIPES, Recipe
from ..request.settle import Settled
from .compiled import MODEL, Compiled
from .plans import PLAN, PlanStage

if TYPE_CHECKING:
    from ..precision.calibration import Scales

_NAMES = ("target", "drafter")
_VERIFIED = RECIPES["fp32"]  # what registered pairs were compared in


def engine_manifest(
    settled: Settled,
    recipe: Recipe,
    inputs: Inputs,
    k: int,
    compiled: Sequence[Compiled],
    plans: Sequence[PlanStage],
    versions: Mapping[str, str],
    ranges: Scales | None = None,
) -> Manifest:
    """What is known before any file is placed; ``plans`` may be none."""
    resolved, spec, head = inputs.resolved, inputs.target.spec, inputs.head
    checkpoint = inputs.target.checkpoint
    origins = (
        Origin(resolved.model, checkpoint.fingerprint, str(checkpoint.folder), spec.architecture),
        Origin(resolved.draft, inputs.drafter.fingerprint, str(inputs.drafter.folder), _architecture(inputs.drafter)),
    )
    target, drafter = (
        Part(
            origin=origin,
            file=f"{name}/{PLAN if plans else MODEL}",
            inputs=done.inputs,
            outputs=done.outputs,
            caches=tuple(Cache(cache.heads, cache.head_dim, _cache_dtype(name, recipe)) for cache in caches),
            plan=plans[i].facts.plan if plans else None,
        )
        for i, (name, origin, done, caches) in enumerate(
            zip(_NAMES, origins, compiled, (spec.caches, head.caches), strict=True)
        )
    )
    return Manifest(
        product_version=product_version(),
        target=target,
        drafter=drafter,
        backend=Backend(settled.backend, settled.lowering.name, versions, settled.gpus),
        precision=recipe.record() | ({"calibration": in_words(ranges)} if ranges else {}),
        speculation=Speculation(k, inputs.max_k, inputs.trained_depth),
        shapes=Shapes(
            max_seq_len=inputs.max_seq_len,
            cache_length=inputs.cache_length(settled.lowering),
            hidden_size=spec.hidden_size,
            vocab_size=spec.vocab_size,
            draft_vocab_size=head.draft_vocab_size,
            taps=head.taps,
        ),
        eos_token_ids=inputs.eos_token_ids,
        files={},
        evidence=_evidence(settled, recipe, inputs, versions),
    )


def _cache_dtype(half: str, recipe: Recipe) -> str:
    """Of codes, or that of the graph, which has no name here. A drafter's caches are few, and stay wide."""
    return FLOAT8 if half == "target" and recipe.kv_cache == "fp8" else ""


def _evidence(settled: Settled, recipe: Recipe, inputs: Inputs, versions: Mapping[str, str]) -> tuple[Evidence, ...]:
    """What a registered pair was verified for was verified on ONNX Runtime in FP32, and holds for no engine whose
    numbers are others; a plan has been built, and no more.

    No level says that full TensorRT built it on its GPU.
    """
    if settled.backend == "tensorrt-rtx":
        how = f"{settled.title} {versions[settled.backend]} built it ahead of time for {', '.join(settled.gpus)}"
        return (Evidence("aot", how if settled.runs_here else f"{how}; not run"),)
    pair = inputs.resolved.pair
    if settled.makes_plans or pair is None or recipe.record() != _VERIFIED.record():
        return ()
    return tuple(Evidence(*item) for item in pair.evidence)


def _architecture(checkpoint: Checkpoint) -> str:
    named = checkpoint.config.get("architectures") or ["unnamed"]
    return str(named[0])
