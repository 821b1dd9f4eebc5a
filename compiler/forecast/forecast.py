"""What an export or a build would make, before anything is downloaded or written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...graphs.drafters import DrafterSpec
from ...graphs.targets import TargetSpec, family_for
from ...plugins.errors import UsageError
from ...plugins.graph_contract import cache_width
from ...plugins.number_formats import FP32, NUMBER_FORMATS
from ..checkpoints.checkpoint import PIECE
from ..checkpoints.target_and_drafter import cache_length
from ..console.progress import Progress, Quiet
from ..hardware.gpus import find_gpu
from ..needs.measured import WRITTEN_BYTES_PER_SECOND
from ..needs.wanted import Wanted
from ..needs.weight_bytes import bytes_of, line, too_wide
from ..precision.multiplied_share import foreseen_refusal, foretold
from ..precision.recipes import Recipe
from ..precision.rounding.in_order import ROOM
from .record import TABLES, DrafterSize, Forecast, GraphSize, HostMemory, KvCache, Time, Verdict, fit

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.targets import CacheSpec
    from ...graphs.targets.layer_trials import Trials
    from ...graphs.targets.weight_roles import RoledWeight

UNKNOWN_HEAD = "unknown until downloaded"
_SHARED = "its embedding is the target's, stored once"

# Rounded up. Measured: 0.45 GB after the libraries have traced a few layers; 90 kB per node of a whole semantic
# graph; 0.23 GB beyond the trace while weights were written.
_LIBRARIES = 600_000_000
_NODE = 100_000
_PIECES_AT_ONCE = 4  # as stored, in FP32, joined with its partner, as written
_TABLE_COPIES = 4  # angles, values, the graph that holds them, its serialised form


def make_forecast(
    model: str,
    config: Mapping[str, Any],
    origin: str,
    wanted: Wanted,
    *,
    max_seq_len: int,
    num_speculative_tokens: int,
    drafts_asked: int | None = None,
    has_drafter: bool = True,
    gpu: str | None = None,
    slots: int | None = None,
    head_note: str = "",
    notes: tuple[str, ...] = (),
    bytes_per_second: float = WRITTEN_BYTES_PER_SECOND,
    progress: Progress | None = None,
) -> Forecast:
    """Forecast for the target whose ``config.json`` is ``config``; traces a few of its layers, without weights.

    ``num_speculative_tokens`` are the drafts that the caches have room for, ``drafts_asked`` those of a round where
    somebody said how many; ``has_drafter`` says whether a drafter makes them. ``head_note`` says what is known of a
    head that is not at hand. Raises one ``UsageError`` for all sizes and names that are wrong, ``BuildError`` for an
    unknown target.
    """
    _check(max_seq_len, num_speculative_tokens, gpu, slots)
    from ...graphs.targets.layer_trials import run_trials

    census, recipe, lowering, head = wanted.census, wanted.recipe, wanted.lowering, wanted.head
    family = family_for(config)
    spec = family.describe(config)
    spec = spec.with_taps(head.taps if head else None) if has_drafter else spec
    possible = min(max_seq_len, spec.max_position_embeddings)
    cut = (f"max_seq_len is {possible}, the most that the model was trained for",) if possible < max_seq_len else ()
    length = cache_length(possible, num_speculative_tokens, lowering)
    progress = progress or Quiet()
    trials = run_trials(config, spec, recipe.dtype, step=progress.step)
    with progress.step("count the nodes"):
        tables = length * trials.table_bytes(lowering)
        graph = _graph(trials, lowering)
    weights = (*wanted.lines, line(TABLES, recipe.wide, tables // int(bytes_of(recipe.wide))))
    drafter, kv = _drafter(wanted, head_note), _kv_cache(spec, head, recipe, length)
    if not has_drafter:
        drafter, kv = replace(drafter, count=0, bytes=0), replace(kv, drafter_token_bytes=0, drafter_slot_bytes=0)
    written = sum(each.bytes for each in weights) + (drafter.bytes or 0)
    refusal = foreseen_refusal(census, recipe, lowering)
    return Forecast(
        model=model,
        origin=origin,
        architecture=spec.architecture,
        layers=trials.layers,
        precision=recipe.name,
        recipe=recipe.says,
        lowering=lowering.name,
        max_seq_len=possible,
        num_speculative_tokens=num_speculative_tokens,
        drafts_asked=drafts_asked,
        cache_length=length,
        weights=weights,
        drafter=drafter,
        kv=kv,
        graph=graph,
        host=HostMemory(_LIBRARIES, _buffers(census), graph.semantic * _NODE + tables * _TABLE_COPIES),
        time=Time(trials.trace_seconds, written / bytes_per_second, bytes_per_second),
        work=wanted.work,
        gpu=_verdict(gpu, recipe, written, kv, slots),
        multiplied=foretold(census, recipe, lowering),
        refusal=f"{refusal.what}; {refusal.why}. {refusal.fix}" if refusal else "",
        notes=(*cut, *(too_wide(census, head, recipe, lowering) if recipe.is_quantized else ()), *notes),
    )


def _check(max_seq_len: int, num_speculative_tokens: int, gpu: str | None, slots: int | None) -> None:
    """Raise one ``UsageError`` for everything that is wrong with what was asked for."""

    def positive() -> None:
        sizes = {"max_seq_len": max_seq_len, "slots": slots}
        small = [f"{name} {value} is below 1" for name, value in sizes.items() if value is not None and value < 1]
        small += [f"num_speculative_tokens {num_speculative_tokens} is below 0"] if num_speculative_tokens < 0 else []
        if small:
            raise UsageError(", ".join(small), why="a plan is for a token and a slot at least, and no fewer drafts")

    checks: list[Callable[[], object]] = [positive]
    if gpu is not None:
        checks.append(lambda: find_gpu(gpu))
    refused = []
    for check in checks:
        try:
            check()
        except UsageError as error:
            refused.append(error)
    if refused:
        what, why, fix = ([text for text in texts if text] for texts in zip(*map(_texts, refused), strict=True))
        raise UsageError("; ".join(what), why="; ".join(why), fix="; ".join(fix))


def _texts(error: UsageError) -> tuple[str, str, str]:
    return error.what, error.why, error.fix


def _drafter(wanted: Wanted, note: str) -> DrafterSize:
    """The drafter's size, without what it reads from the target's file."""
    precision = wanted.recipe.drafter
    if wanted.head is None:
        return DrafterSize(precision, None, None, note or UNKNOWN_HEAD)
    return DrafterSize(precision, *wanted.of_head, note or (_SHARED if wanted.shared else ""))


def _kv_cache(spec: TargetSpec, head: DrafterSpec | None, recipe: Recipe, length: int) -> KvCache:
    target = _token_bytes(spec.caches, recipe.kv_cache)
    drafter = _token_bytes(head.caches, recipe.cache_type("drafter")) if head else None
    return KvCache(recipe.kv_cache, target, drafter, target * length, None if drafter is None else drafter * length)


def _token_bytes(caches: tuple[CacheSpec, ...], precision: str) -> int:
    kind = NUMBER_FORMATS[precision].number_type
    return sum(2 * cache.heads * kind.bytes(cache_width(cache.head_dim, kind.name)) for cache in caches)


def _graph(trials: Trials, lowering: Lowering) -> GraphSize:
    semantic, lowered = trials.operators(), trials.operators(lowering)
    return GraphSize(trials.traced_layers, sum(semantic.values()), sum(lowered.values()), semantic, lowered)


def _buffers(census: tuple[RoledWeight, ...]) -> int:
    """Bytes of the pieces that a checkpoint is read in, of which one expert is the least, and that wait for threads."""
    expert = max((math.prod(each.shape[1:]) for each in census if each.role == "experts"), default=0)
    return _PIECES_AT_ONCE * max(PIECE, expert * int(bytes_of(FP32.name))) + ROOM


def _verdict(gpu: str | None, recipe: Recipe, weight_bytes: int, kv: KvCache, slots: int | None) -> Verdict | None:
    if gpu is None:
        return None
    slot = kv.target_slot_bytes + (kv.drafter_slot_bytes or 0)
    types = {recipe.weights, recipe.experts, recipe.lm_head, recipe.drafter, recipe.kv_cache}
    return fit(find_gpu(gpu), sorted(types), weight_bytes, slot, slots or 1)
