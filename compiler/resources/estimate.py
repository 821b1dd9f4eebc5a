"""The estimate of a build or an export: exact weight bytes, memory, time and disk, without writing anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ...engines.folder.records import Speculation
from ...graphs.targets import family_for
from ...plugins.number_formats import FP32, keeps_blocks
from ...plugins.problems import counted
from ..checkpoints.checkpoint import PIECE
from ..checkpoints.target_and_drafter import cache_length
from ..console.progress import Progress, Quiet
from ..hardware.gpus import find_gpu
from ..precision.quantized_compute import expected_refusal, expected_warning
from ..precision.recipes import MULTIPLIED
from ..precision.rounding.in_order import ROOM
from .check import NO_BLOCKER, Need, Outcome
from .disk import Disk
from .gpu_memory import Verdict, fit
from .pass_tensors import pass_tensors
from .speed.model_speed import SpeedQuestion, estimate_speed
from .speed.round_estimate import SpeedEstimate
from .speed.target_work import position_bytes
from .weight_bytes import SCALES, WeightLine, bytes_of, line, too_wide
from .work import WRITTEN_BYTES_PER_SECOND, BuildWork
from .workload import Workload

if TYPE_CHECKING:
    from ...graphs.targets.weight_roles import RoledWeight

UNKNOWN_HEAD = "unknown until downloaded"
TABLES = "rotary tables"
_SHARED = "the drafter shares the target's embedding, which is stored once"

# Rounded up. Measured: 0.45 GB after the libraries have traced a few layers; 90 kB per node of a whole semantic
# graph; 0.23 GB beyond the trace while weights were written.
_LIBRARIES = 600_000_000
_NODE = 100_000
_PIECES_AT_ONCE = 4  # as stored, in FP32, joined with its partner, as written
_TABLE_COPIES = 4  # angles, values, the graph that holds them, its serialized form


@dataclass(frozen=True)
class DrafterSize:
    """The size of the head; None for what only its checkpoint can tell."""

    precision: str
    count: int | None
    bytes: int | None
    note: str


@dataclass(frozen=True)
class KvCache:
    """Cache bytes per token, and per slot of T tokens."""

    precision: str
    target_token_bytes: int
    drafter_token_bytes: int | None
    target_slot_bytes: int
    drafter_slot_bytes: int | None


@dataclass(frozen=True)
class GraphSize:
    """Operators of the target's graph, extrapolated from ``traced_layers`` layers and one more of each kind."""

    traced_layers: int
    semantic: int
    lowered: int
    semantic_operators: Mapping[str, int]
    lowered_operators: Mapping[str, int]


@dataclass(frozen=True)
class HostMemory:
    """Estimated memory of the process that traces and writes, above what was measured."""

    libraries_bytes: int
    buffer_bytes: int
    graph_bytes: int

    @property
    def bytes(self) -> int:
        """The sum of the parts."""
        return self.libraries_bytes + self.buffer_bytes + self.graph_bytes


@dataclass(frozen=True)
class Time:
    """Estimated seconds to write the weights, at a recorded rate (`make bench-export`)."""

    weight_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Estimate:
    """The content of a ``--dry-run`` report. ``origin`` is the source of the target's configuration.

    ``refusal`` and ``multiplied`` are printed first: the reason why a build would fail because too few matmuls run in
    the recipe's type, or the share that does. ``disk``, ``needs`` and ``outcome`` are for a request with an output
    folder. The caches have room for ``num_speculative_tokens`` drafts; a round has ``drafts_asked``, or an adaptive
    number if that is None.
    """

    model: str
    origin: str
    architecture: str
    layers: Mapping[str, int]
    precision: str
    recipe: str
    lowering: str
    max_seq_len: int
    num_speculative_tokens: int
    cache_length: int
    weights: tuple[WeightLine, ...]
    drafter: DrafterSize
    kv: KvCache
    graph: GraphSize
    host: HostMemory
    time: Time
    work: BuildWork
    gpu: Verdict | None
    notes: tuple[str, ...]
    multiplied: str = ""
    refusal: str = ""
    disk: Disk | None = None
    needs: tuple[Need, ...] = ()
    outcome: Outcome = NO_BLOCKER
    drafts_asked: int | None = None  # a key of --dry-run --json
    speed_estimate: SpeedEstimate | None = None

    @property
    def drafts(self) -> str:
        """The number of drafts per round, in words."""
        max_drafts, requested = self.num_speculative_tokens, self.drafts_asked
        if max_drafts == 0:
            return "no drafts"
        if requested is None:
            return f"an adaptive number of drafts per round, room for {max_drafts}"
        words = f"{counted(requested, 'draft')} per round"
        return words if requested == max_drafts else f"{words}, room for {max_drafts}"

    @property
    def weight_count(self) -> int:
        """The target's own weights, without scales and tables."""
        return sum(each.count for each in self.weights if each.role not in (SCALES, TABLES))

    @property
    def weight_bytes(self) -> int:
        """The bytes of every line of ``weights``."""
        return sum(each.bytes for each in self.weights)

    def as_json(self) -> dict[str, Any]:
        """Return every field and the sums."""
        first = {"refusal": self.refusal, MULTIPLIED: self.multiplied}
        content = {name: text for name, text in first.items() if text} | asdict(self)
        content |= {"weight_count": self.weight_count, "weight_bytes": self.weight_bytes}
        content["host"]["bytes"] = self.host.bytes
        if self.disk:
            content["disk"]["short_bytes"] = self.disk.short_bytes
        if self.gpu:
            content["gpu"]["fits"] = self.gpu.fits
        if self.speed_estimate:
            content["speed_estimate"] = self.speed_estimate.as_json()
        return content


def estimate(
    model: str,
    config: Mapping[str, Any],
    origin: str,
    workload: Workload,
    *,
    max_seq_len: int,
    rows: int,
    speculation: Speculation,
    has_drafter: bool = True,
    gpu: str | None = None,
    head_note: str = "",
    notes: tuple[str, ...] = (),
    speed: SpeedQuestion | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """Estimate the target with the ``config.json`` in ``config``, by tracing a few of its layers without weights.

    ``rows`` is the maximum number of rows of a round. ``has_drafter`` is true if a drafter makes the drafts of
    ``speculation``. ``head_note`` describes a head that is not local; without ``speed``, no speed is estimated. Raises
    ``UsageError`` for an unknown GPU, ``BuildError`` for an unknown target.
    """
    known_gpu = find_gpu(gpu) if gpu else None
    from ...graphs.layer_trials import run_trials
    from ...graphs.quantization import keep_all

    census, recipe, lowering, head = workload.census, workload.recipe, workload.lowering, workload.head
    spec = family_for(config).describe(config)
    spec = spec.with_taps(head.taps if head else None) if has_drafter else spec
    possible = min(max_seq_len, spec.max_position_embeddings)
    cut = (f"max_seq_len was reduced to {possible}, the model's maximum",) if possible < max_seq_len else ()
    max_drafts = speculation.max_num_speculative_tokens
    length = cache_length(possible, max_drafts, lowering)
    progress = progress or Quiet()
    trials = run_trials(config, spec, recipe.dtype, step=progress.step)
    if lowering.is_tensorrt and keeps_blocks(recipe.experts):
        trials = trials.rewritten(keep_all)
    with progress.step("count the nodes"):
        tables = length * trials.table_bytes(lowering)
        semantic, lowered = trials.operators(), trials.operators(lowering)
    graph = GraphSize(trials.traced_layers, sum(semantic.values()), sum(lowered.values()), semantic, lowered)
    token = position_bytes(spec.caches, recipe.kv_cache)
    drafter, head_token = DrafterSize(recipe.drafter, None, None, head_note or UNKNOWN_HEAD), None
    if head:
        drafter = DrafterSize(recipe.drafter, *workload.of_head, head_note or (_SHARED if workload.shared else ""))
        head_token = position_bytes(head.caches, recipe.cache_type("drafter"))
    elif not has_drafter:
        drafter, head_token = replace(drafter, count=0, bytes=0), 0
    head_slot = None if head_token is None else head_token * length
    text = family_for(config).text(config)
    tensors = pass_tensors(spec, text, workload, rows=rows, num_speculative_tokens=max_drafts).bytes(length)
    speeds = estimate_speed(speed, workload, spec, text, trials, gpu) if speed else None
    weights = (*workload.lines, line(TABLES, recipe.wide, tables // int(bytes_of(recipe.wide))))
    written = sum(each.bytes for each in weights) + (drafter.bytes or 0)
    types = sorted({recipe.weights, recipe.experts, recipe.lm_head, recipe.drafter, recipe.kv_cache})
    refusal = expected_refusal(census, recipe, lowering)
    return Estimate(
        model=model,
        origin=origin,
        architecture=spec.architecture,
        layers=trials.layers,
        precision=recipe.name,
        recipe=recipe.says,
        lowering=lowering.name,
        max_seq_len=possible,
        num_speculative_tokens=max_drafts,
        drafts_asked=None if speculation.adapts else speculation.num_speculative_tokens,
        cache_length=length,
        weights=weights,
        drafter=drafter,
        kv=KvCache(recipe.kv_cache, token, head_token, token * length, head_slot),
        graph=graph,
        host=HostMemory(_LIBRARIES, _buffers(census), graph.semantic * _NODE + tables * _TABLE_COPIES),
        time=Time(written / WRITTEN_BYTES_PER_SECOND, WRITTEN_BYTES_PER_SECOND),
        work=workload.work,
        gpu=fit(known_gpu, types, written, token * length + (head_slot or 0), rows, tensors) if known_gpu else None,
        speed_estimate=speeds,
        multiplied=expected_warning(census, recipe, lowering),
        refusal=f"{refusal.what}; {refusal.why}. {refusal.fix}" if refusal else "",
        notes=(*cut, *(too_wide(census, head, recipe, lowering) if recipe.is_quantized else ()), *notes),
    )


def _buffers(census: tuple[RoledWeight, ...]) -> int:
    """Return the bytes of read buffers; a checkpoint is read in pieces of at least one expert, queued for threads."""
    expert = max((math.prod(each.shape[1:]) for each in census if each.role == "experts"), default=0)
    return _PIECES_AT_ONCE * max(PIECE, expert * int(bytes_of(FP32.name))) + ROOM
