"""Whether an engine computes with numbers: one short pass of each half before it is published, whatever its K is."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engines.folder.manifest import Manifest
from ...plugins.errors import BuildError
from ..bundled.prompts import default_prompts
from ..store.stages import Stage
from .shared_steps import PipelineRun

if TYPE_CHECKING:
    from ...engines import Engine

Ids = list[int]


def prompts_for(engine: Engine, count: int) -> list[Ids]:
    """Bundled prompts as token ids, none so long that there is no room for an answer."""
    room = max(engine.max_seq_len // 2, 1)
    return [ids[:room] or [0] for ids in default_prompts(engine, count)]


def require_numbers(engine: Engine, prompts: Sequence[Ids], name: Path) -> None:
    """Raise ``BuildError`` for an engine, to be called ``name``, whose logits after a prompt are not all numbers.

    Whatever K it is given, it would be fast and say nothing.
    """
    manifest = engine.manifest
    require_finite("target", [engine.target_logits(ids) for ids in prompts], manifest, name)
    if manifest.drafter:
        k = manifest.speculation.max_num_speculative_tokens
        require_finite("drafter", [engine.draft_logits(prompts[0], k)], manifest, name)


def require_finite(half: str, logits: Sequence[np.ndarray[Any, Any]], manifest: Manifest, name: Path) -> None:
    """Raise ``BuildError`` unless all ``logits`` of one half, those after a prompt each, are numbers."""
    bad = [each for each in logits if not np.isfinite(each).all()]
    if not bad:
        return
    kinds = set(manifest.precision.values())
    if kinds == {"fp32"}:
        why, fix = "fp32 has room for all numbers that a model computes with", "download the checkpoint again"
    else:
        why = f"the weights overflow in this precision, {manifest.precision['recipe']}"
        wider = ["--precision bf16, whose numbers reach as far as those of fp32"]
        wider = wider if manifest.backend.gpus and "bf16" not in kinds else []
        fix = f"build with {', or with '.join([*wider, '--backend onnxruntime --precision fp32'])}"
    raise BuildError(
        f"{name} would not work: its {half}'s logits are not finite after {len(bad)} of {len(logits)} prompts",
        why=why,
        fix=fix,
    )


def cached_check(
    run: PipelineRun, manifest: Manifest, folder: Path, graphs: Mapping[str, Stage], *, name: Path
) -> bool:
    """Check the numbers of the engine in ``folder``, unless those of the same graphs and runtime were checked before.

    Returns whether they were. ``name`` is what ``folder`` will be called, ``graphs`` are what it was made of, by half.
    """

    def make(stage: Path) -> None:
        from ...engines.engine import Engine

        engine = Engine.load(folder, check="sizes")
        require_numbers(engine, prompts_for(engine, 1), name)
        (stage / "numbers.txt").write_text("all logits were finite\n")

    key = [[stage.path.name for stage in graphs.values()], manifest.backend.versions[manifest.backend.name]]
    with run.progress.step("check numbers"):
        return run.store.run("check-numbers", [*key, manifest.shapes.max_seq_len, platform.node()], make).reused


def not_checked(gpus: Sequence[str]) -> str:
    """What a user should know of an engine that this machine cannot run."""
    return (
        f"whether this engine computes with numbers is not checked: this machine cannot run one for {', '.join(gpus)}; "
        "`peagle-compile verify` does it where it runs"
    )
