"""What TensorRT adds to a build, as kept stages: the plans of both graphs, and our kernels for their GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from ...engines.folder.manifest import Profile
from ..console.progress import Progress
from ..hardware.architectures import Product
from ..request.options import BuildOptions
from ..request.settle import DEFAULT_BATCH_SIZE, Settled
from ..store.durable import require_space
from ..store.stages import Stage, StageStore
from ..tensorrt.protocol import PlanFacts, PlanRequest
from .compiled import MODEL, Compiled
from .half import Half

PLAN = "model.plan"
CHUNK = 512  # the most columns of a prompt in one pass
_FACTS = "plan.json"
_GB = 10**9


@dataclass(frozen=True)
class PlanStage:
    """A kept plan, and what was counted and measured when it was built."""

    stage: Stage
    facts: PlanFacts


def profiles(half: str, max_batch_size: int, max_k: int, max_seq_len: int) -> tuple[Profile, ...]:
    """Index 0 decodes all rows at once, index 1 reads a chunk of one row's prompt. A drafter drafts at least one."""
    emitted = (2 if half == "drafter" else 1, max_k + 1, max_k + 1)
    chunk = min(CHUNK, max_seq_len)
    return (
        Profile("verify", (1, max_batch_size, max_batch_size), (1, max_k + 1, max_k + 1), emitted),
        Profile("prefill", (1, 1, 1), (1, chunk, chunk), emitted),
    )


def build_plan(
    store: StageStore,
    half: Half,
    compiled: Compiled,
    settled: Settled,
    options: BuildOptions,
    *,
    max_k: int,
    max_seq_len: int,
    progress: Progress,
) -> PlanStage:
    """The TensorRT plan of a lowered graph. Raises ``BuildError`` when TensorRT refuses it."""
    sizes = profiles(half.name, options.max_batch_size or DEFAULT_BATCH_SIZE, max_k, max_seq_len)
    request = PlanRequest(
        name=half.name,
        graph=compiled.attached.path / MODEL,
        product=cast("Product", settled.backend),
        gpus=settled.gpus,
        profiles=sizes,
        workspace_bytes=None if options.workspace_gb is None else int(options.workspace_gb * _GB),
        optimization_level=options.optimization_level,
        weight_streaming=options.weight_streaming,
        timing_cache=store.root / "timing" / f"{settled.backend}-{settled.version}.cache",
    )
    key = asdict(request) | {"graph": compiled.attached.path.name, "timing_cache": None, "version": settled.version}

    # A plan holds the weights, and the builder leaves it nothing to share.
    weights = sum(entry.size for entry in compiled.attached.files.values())

    def make(folder: Path) -> None:
        from ..precision.proof import require_effect
        from ..tensorrt.build import build_plan as run

        require_space(store.root, weights)
        facts = run(request, folder / PLAN, progress)
        if compiled.precision:
            notes = require_effect(half.name, compiled.precision, facts.products)
            facts = replace(facts, warnings=(*facts.warnings, *notes))
        (folder / _FACTS).write_text(json.dumps(facts.to_record()))

    stage = store.run(f"plan-{half.name}", key, make, needed=weights)
    return PlanStage(stage, PlanFacts.from_record(json.loads((stage.path / _FACTS).read_bytes())))


def build_kernels(store: StageStore, gpus: Sequence[str], progress: Progress) -> Stage:
    """The kernels of all our plugins for these GPUs in one pack: those that were shipped, the rest from NVRTC."""
    from ...plugins.kernels.pack import obtain, write_pack
    from ...plugins.kernels.sources import digest, kernel_ops

    wanted = [(op, int(gpu.removeprefix("sm_"))) for gpu in gpus for op in kernel_ops()]

    def make(folder: Path) -> None:
        cubins = {}
        with progress.step("compile kernels", len(wanted)) as advance:
            for op, sm in wanted:
                cubin = obtain(op, sm)  # one of an earlier GPU of the same generation may serve two
                cubins[op.name, cubin.sm] = cubin
                advance(1)
        write_pack(folder, list(cubins.values()))

    return store.run("kernels", [[op.name, digest(op), sm] for op, sm in wanted], make)
