"""Check that an engine's logits are finite, by one short pass of each half, before the engine is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engines.folder.manifest import Manifest
from ...plugins.errors import BuildError
from ...plugins.number_formats import BF16, FP32
from ..bundled.prompts import default_prompts
from ..hardware.cpu_in_use import computed_on
from ..store.stages import Stage
from .shared_steps import PipelineRun

if TYPE_CHECKING:
    from ...engines import Engine

Ids = list[int]


def prompts_for(engine: Engine, count: int) -> list[Ids]:
    """Return bundled prompts as token ids, cut to leave room for an answer."""
    room = max(engine.max_seq_len // 2, 1)
    return [ids[:room] or [0] for ids in default_prompts(engine, count)]


def require_numbers(engine: Engine, prompts: Sequence[Ids], name: Path) -> None:
    """Raise ``BuildError`` if logits of an engine, to be published as ``name``, are not finite after a prompt.

    An engine with such logits would be fast at any K, but its output would be meaningless.
    """
    manifest = engine.manifest
    require_finite("target", [engine.target_logits(ids) for ids in prompts], manifest, name)
    if manifest.drafter:
        k = manifest.speculation.max_num_speculative_tokens
        require_finite("drafter", [engine.draft_logits(prompts[0], k)], manifest, name)


def require_finite(component: str, logits: Sequence[np.ndarray[Any, Any]], manifest: Manifest, name: Path) -> None:
    """Raise ``BuildError`` unless all ``logits`` of one component, one array for each prompt, are finite."""
    bad = [each for each in logits if not np.isfinite(each).all()]
    if not bad:
        return
    kinds = set(manifest.precision.values())
    if kinds == {FP32.name}:
        why, fix = "the checkpoint is probably damaged: fp32 does not overflow", "download the checkpoint again"
    else:
        why = f"the weights overflow in this precision, {manifest.precision['recipe']}"
        wider = ["--precision bf16, which has the range of fp32"]
        wider = wider if manifest.backend.gpus and BF16.name not in kinds else []
        fix = f"build with {', or with '.join([*wider, '--backend onnxruntime --precision fp32'])}"
    raise BuildError(
        f"{name} does not work: the {component}'s logits are NaN or infinite after {len(bad)} of {len(logits)} prompts",
        why=why,
        fix=fix,
    )


def cached_check(
    run: PipelineRun, manifest: Manifest, folder: Path, graphs: Mapping[str, Stage], *, name: Path
) -> bool:
    """Check that the engine in ``folder`` computes finite logits, unless its graphs and runtime were checked before.

    Returns True if they were. ``name`` is the final name of ``folder``; ``graphs`` are its stages, by component.
    """

    def make(stage: Path) -> None:
        from ...engines.engine import Engine

        engine = Engine.load(folder, check="sizes", prefix_cache_bytes=0)
        require_numbers(engine, prompts_for(engine, 1), name)
        (stage / "numbers.txt").write_text("all logits were finite\n")

    key = [[stage.path.name for stage in graphs.values()], manifest.backend.versions[manifest.backend.name]]
    with run.progress.step("check numbers"):
        return run.store.run("check-numbers", [*key, manifest.shapes.max_seq_len, *computed_on()], make).reused


def not_checked(gpus: Sequence[str]) -> str:
    """Return the warning on an engine that this machine cannot run."""
    return (
        f"the engine's outputs were not checked: this machine cannot run an engine for {', '.join(gpus)}; "
        "run `peagle-compile verify` on a machine that can run it"
    )
