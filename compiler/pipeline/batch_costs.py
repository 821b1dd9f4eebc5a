"""Measure the cost of rounds of several texts by K, so that the policy need not estimate it from rounds of one text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ...engines.engine import Engine
from ...engines.folder.manifest import Manifest
from ...engines.folder.records import BatchCosts
from ...engines.policy.drafts_per_round import spaced_counts
from ...engines.policy.prior import filled_costs
from ...engines.policy.sweep import near_fastest
from ..console.progress import Progress
from ..hardware.cpu_in_use import measured_on
from ..store.stages import Stage
from .check_numbers import Ids, prompts_for
from .choose_k import KChoice
from .shared_steps import PipelineRun

ROWS = (2, 4)  # numbers of texts that a build measures; costs between them are interpolated
_SECONDS = 3.0  # for each number of texts


def cached_batches(
    run: PipelineRun, manifest: Manifest, folder: Path, graphs: Mapping[str, Stage], choice: KChoice
) -> tuple[tuple[BatchCosts, ...], bool]:
    """Measure rounds of several texts with the engine in ``folder``, or reuse those of an earlier build of its graphs.

    Also returns True if they were reused. ``graphs`` are the engine's stages, by component. Raises
    ``EnvironmentProblem`` as ``measure_batches`` does.
    """

    def make(stage: Path) -> None:
        measured = measure_batches(folder, manifest, ROWS, choice, run.progress)
        (stage / "batches.json").write_text(json.dumps([asdict(each) for each in measured]))

    max_drafts = manifest.speculation.max_num_speculative_tokens
    names = [stage.path.name for stage in graphs.values()]
    worth = max(choice.near_fastest)
    key = [names, manifest.backend.versions[manifest.backend.name], max_drafts, worth, *measured_on()]
    stage = run.store.run("batch-costs", key, make)
    content = json.loads((stage.path / "batches.json").read_bytes())
    return tuple(BatchCosts(each["rows"], tuple(each["costs"])) for each in content), stage.reused


def measure_batches(
    folder: Path,
    manifest: Manifest,
    rows: Sequence[int],
    choice: KChoice,
    progress: Progress,
    *,
    draft: str | None = None,
    prompts: Sequence[Ids] = (),
    threads: int | None = None,
) -> tuple[BatchCosts, ...]:
    """Return the costs of rounds of so many texts; numbers for which the engine was not built are omitted.

    ``choice`` has the measurements of one text. A K that is far behind there, or with fewer texts, is not measured:
    its cost is extrapolated.

    ``draft`` names the drafter; ``prompts`` are the texts, by default bundled ones. Empty if the engine does not draft
    with a head. Raises ``EnvironmentProblem`` if this machine has no memory for so many caches.
    """
    max_drafts = manifest.speculation.max_num_speculative_tokens
    rows = [each for each in rows if each <= _most_rows(manifest)]
    if not rows or not manifest.draft_method.needs_head:
        return ()
    with Engine.load(
        folder, max_batch_size=max(rows), check="sizes", prefix_cache_bytes=0, draft=draft, threads=threads
    ) as engine:
        texts = prompts or prompts_for(engine, max(rows))
        found, last = [], max(choice.near_fastest)
        for each in rows:
            counts = [k for k in spaced_counts(max_drafts) if k <= max(last, 1)]
            with progress.step(f"measure rounds of {each} requests"):
                measured = engine.measure_rounds(texts, each, counts=counts, seconds=_SECONDS)
            if measured:
                last = max(near_fastest({k: of_k.value for k, of_k in measured.items()}))
                between = np.interp(range(counts[-1] + 1), counts, [of_k.cost for of_k in measured.values()])
                found.append(
                    BatchCosts(each, tuple(round(cost, 3) for cost in filled_costs(between.tolist(), max_drafts)))
                )
    return tuple(found)


def _most_rows(manifest: Manifest) -> int:
    """Return how many texts the engine can run at once."""
    plans = [part.plan for part in manifest.parts.values() if part.plan is not None]
    return min((max(each.rows[-1] for each in plan.profiles) for plan in plans), default=1 << 30)
