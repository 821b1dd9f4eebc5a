"""What an export or a build would make, before anything is downloaded or written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...graphs.drafters import DrafterSpec
from ...graphs.lowering import Lowering, lowering_named
from ...graphs.targets import TargetSpec, family_for
from ...plugins.errors import UsageError
from ..checkpoints.checkpoint import PIECE
from ..checkpoints.pair import cache_length
from ..hardware.gpus import Verdict, find_gpu, fit
from ..precision.legal import available, require_legal
from ..precision.recipes import Overrides, Recipe
from .facts import TABLES, Drafter, Graph, HostMemory, KvCache, Plan, Time
from .weight_bytes import BYTES, head_weights, line, recipe, too_wide, weight_lines

if TYPE_CHECKING:
    from ...graphs.targets import CacheSpec
    from ...graphs.targets.census import RoledWeight
    from ...graphs.targets.trials import Trials

NOTHING = Overrides()
UNKNOWN_HEAD = "unknown until downloaded"

# `make bench-export` writes 120 MB/s in FP16 and 187 MB/s in FP32 (docs/performance.md); below both, on the safe side.
BYTES_PER_SECOND = 80e6

# Upper figures. Measured: 0.45 GB after the libraries have traced a few layers; 90 kB per node of a whole semantic
# graph; 0.23 GB beyond the trace while weights were written.
_LIBRARIES = 600_000_000
_NODE = 100_000
_PIECES_AT_ONCE = 4  # as stored, in FP32, joined with its partner, as written
_TABLE_COPIES = 4  # angles, values, the graph that holds them, its serialised form


def make_plan(
    model: str,
    config: Mapping[str, Any],
    origin: str,
    *,
    precision: str,
    max_seq_len: int,
    num_speculative_tokens: int,
    lowering: str,
    gpu: str | None = None,
    slots: int | None = None,
    overrides: Overrides = NOTHING,
    wide: str | None = None,
    head: DrafterSpec | None = None,
    head_note: str = "",
    notes: tuple[str, ...] = (),
    bytes_per_second: float = BYTES_PER_SECOND,
) -> Plan:
    """Plan for the target whose ``config.json`` is ``config``; traces a few of its layers, without weights.

    ``num_speculative_tokens`` are the drafts that the caches have room for. ``wide`` is the type that TensorRT computes
    in; None is not known yet. ``head_note`` says what is known of a head that is not at hand. Raises one ``UsageError``
    for all that cannot be planned, ``BuildError`` for an unknown target.
    """
    _check(precision, lowering, max_seq_len, num_speculative_tokens, gpu, slots)
    from ...graphs.targets.skeleton import Skeleton
    from ...graphs.targets.trials import run_trials

    known = lowering_named(lowering)
    chosen = planned_recipe(precision, known, overrides, wide)
    if precision in available(known):
        require_legal(chosen, known, settled=wide is not None or not known.is_tensorrt)
    family = family_for(config)
    spec = family.describe(config).with_taps(head.taps if head else None)
    possible = min(max_seq_len, spec.max_position_embeddings)
    cut = (f"max_seq_len is {possible}, the most that the model was trained for",) if possible < max_seq_len else ()
    length = cache_length(possible, num_speculative_tokens, known)
    found = Skeleton(config).weights
    trials = run_trials(config, spec, chosen.dtype)
    tables = length * trials.table_bytes(known)
    weights = (*weight_lines(found, chosen, known), line(TABLES, chosen.wide, tables // int(BYTES[chosen.wide])))
    drafter, kv = _drafter(head, head_note, chosen, known), _kv_cache(spec, head, chosen, length)
    graph = _graph(trials, known)
    written = sum(each.bytes for each in weights) + (drafter.bytes or 0)
    return Plan(
        model=model,
        origin=origin,
        architecture=spec.architecture,
        layers=trials.layers,
        precision=precision,
        recipe=chosen.says,
        lowering=lowering,
        max_seq_len=possible,
        num_speculative_tokens=num_speculative_tokens,
        cache_length=length,
        weights=weights,
        drafter=drafter,
        kv=kv,
        graph=graph,
        host=HostMemory(_LIBRARIES, _buffers(found), graph.semantic * _NODE + tables * _TABLE_COPIES),
        time=Time(trials.trace_seconds, written / bytes_per_second, bytes_per_second),
        gpu=_verdict(gpu, chosen, written, kv, slots),
        notes=(*cut, *(too_wide(found, head, chosen, known) if chosen.narrows else ()), *notes),
    )


def planned_recipe(precision: str, lowering: Lowering, overrides: Overrides, wide: str | None = None) -> Recipe:
    """The table of types. Raises ``UsageError`` for a precision that does not exist."""
    over = (wide or "bf16") if lowering.is_tensorrt else "fp32"
    return overrides.of(recipe(precision).on(over, lowering))


def _check(
    precision: str, lowering: str, max_seq_len: int, num_speculative_tokens: int, gpu: str | None, slots: int | None
) -> None:
    """Raise one ``UsageError`` for everything that is wrong with what was asked for."""

    def positive() -> None:
        sizes = {"max_seq_len": max_seq_len, "num_speculative_tokens": num_speculative_tokens, "slots": slots}
        small = [f"{name} {value}" for name, value in sizes.items() if value is not None and value < 1]
        if small:
            raise UsageError(f"{', '.join(small)} is below 1", why="a plan is for at least one of each")

    checks: list[Callable[[], object]] = [lambda: recipe(precision), lambda: lowering_named(lowering), positive]
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


def _drafter(head: DrafterSpec | None, note: str, chosen: Recipe, lowering: Lowering) -> Drafter:
    """A drafter is never narrowed with its target: only where it was asked for."""
    if head is None:
        return Drafter(chosen.drafter, None, None, note or UNKNOWN_HEAD)
    count, size = head_weights(head, chosen, lowering)
    return Drafter(chosen.drafter, count, size, note)


def _kv_cache(spec: TargetSpec, head: DrafterSpec | None, chosen: Recipe, length: int) -> KvCache:
    target = _token_bytes(spec.caches, chosen.kv_cache)
    drafter = _token_bytes(head.caches, chosen.wide) if head else None
    return KvCache(chosen.kv_cache, target, drafter, target * length, None if drafter is None else drafter * length)


def _token_bytes(caches: tuple[CacheSpec, ...], precision: str) -> int:
    return sum(2 * cache.heads * cache.head_dim for cache in caches) * int(BYTES[precision])


def _graph(trials: Trials, lowering: Lowering) -> Graph:
    semantic, lowered = trials.operators(), trials.operators(lowering)
    return Graph(trials.traced_layers, sum(semantic.values()), sum(lowered.values()), semantic, lowered)


def _buffers(census: tuple[RoledWeight, ...]) -> int:
    """A checkpoint is read in pieces, of which one expert is the least."""
    expert = max((math.prod(each.shape[1:]) for each in census if each.role == "experts"), default=0)
    return _PIECES_AT_ONCE * max(PIECE, expert * int(BYTES["fp32"]))


def _verdict(gpu: str | None, chosen: Recipe, weight_bytes: int, kv: KvCache, slots: int | None) -> Verdict | None:
    if gpu is None:
        return None
    slot = kv.target_slot_bytes + (kv.drafter_slot_bytes or 0)
    types = {chosen.weights, chosen.experts, chosen.lm_head, chosen.drafter, chosen.kv_cache}
    return fit(find_gpu(gpu), sorted(types), weight_bytes, slot, slots or 1)
