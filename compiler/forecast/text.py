"""A plan as the command line shows it."""

from __future__ import annotations

from ..console.text import columns, size
from ..hardware.gpus import RESERVED_FOR, Verdict
from .facts import Plan


def render(plan: Plan) -> str:
    """The plan as aligned text."""
    return "\n\n".join((columns(_asked(plan)), columns(_weights(plan)), columns(_rest(plan))))


def _asked(plan: Plan) -> list[tuple[str, str]]:
    layers = ", ".join(f"{count} {kind}" for kind, count in plan.layers.items())
    return [
        ("plan", f"{plan.model} for {plan.lowering} in {plan.precision}; nothing is written"),
        ("  facts from", plan.origin),
        ("  architecture", f"{plan.architecture}; layers: {layers}"),
        ("  precision", plan.recipe),
        (
            "  lengths",
            f"max_seq_len {plan.max_seq_len}, {plan.num_speculative_tokens} drafts a round: "
            f"a slot of the KV cache has {plan.cache_length} tokens",
        ),
    ]


def _weights(plan: Plan) -> list[tuple[str, str, str, str]]:
    counts = [f"{each.count:,}" for each in plan.weights] + [f"{plan.weight_count:,}"]
    sizes = [size(each.bytes) for each in plan.weights] + [size(plan.weight_bytes)]
    wide, wider = max(map(len, counts)), max(map(len, sizes))
    names = [f"  {each.role}" for each in plan.weights] + ["  all"]
    precisions = [each.precision for each in plan.weights] + [""]
    rows = zip(names, counts, precisions, sizes, strict=True)
    return [
        ("weights", "count".rjust(wide), "precision", "bytes".rjust(wider)),
        *((name, count.rjust(wide), precision, each.rjust(wider)) for name, count, precision, each in rows),
    ]


def _rest(plan: Plan) -> list[tuple[str, str]]:
    graph, host, time = plan.graph, plan.host, plan.time
    rows = [
        ("drafter", _drafter(plan)),
        ("KV cache", f"{plan.kv.target_token_bytes:,} bytes a token, {size(plan.kv.target_slot_bytes)} a slot"),
        ("  of the drafter", _drafter_cache(plan)),
        (
            "nodes",
            f"{graph.semantic:,} in the target's semantic graph, {graph.lowered:,} lowered for {plan.lowering}; "
            f"from {graph.traced_layers} of {sum(plan.layers.values())} layers, {_one_width(plan)}",
        ),
        (
            "host memory",
            f"at most about {size(host.bytes)}: libraries {size(host.libraries_bytes)}, "
            f"buffers {size(host.buffer_bytes)}, graph and tables {size(host.graph_bytes)}",
        ),
        (
            "time",
            f"at most about {duration(time.trace_seconds)} to trace the target here, {duration(time.weight_seconds)} "
            f"to write weights at {size(time.bytes_per_second)}/s; a download comes on top",
        ),
    ]
    if plan.gpu:
        gpu = plan.gpu.gpu
        rows.append(("GPU", f"{gpu.name} (sm_{gpu.sm}, {size(gpu.memory_bytes)}; {gpu.source})"))
        rows += [("  verdict", _verdict(plan.gpu, plan)), ("  kept free", _reserve(plan.gpu))]
    return [*rows, *(("note", note) for note in plan.notes)]


def _one_width(plan: Plan) -> str:
    """Graphs are traced with all weights of one width; what narrows some of them comes after."""
    traced = plan.drafter.precision
    return f"in {traced}" if traced == plan.precision else f"in {traced}: {plan.precision} adds to them"


def _drafter(plan: Plan) -> str:
    head = plan.drafter
    if head.count is None or head.bytes is None:
        return head.note
    known = f"{head.count:,} weights in {head.precision}, {size(head.bytes)}"
    return f"{known}; {head.note}" if head.note else known


def _drafter_cache(plan: Plan) -> str:
    token, slot = plan.kv.drafter_token_bytes, plan.kv.drafter_slot_bytes
    if token is None or slot is None:
        return "unknown, as the drafter is"
    return f"{token:,} bytes a token, {size(slot)} a slot"


def _verdict(verdict: Verdict, plan: Plan) -> str:
    if verdict.refusal:
        return f"does not run: {verdict.refusal}"
    wanted = _slots(verdict.slots, plan)
    beside = f"beside {size(verdict.weight_bytes)} of weights"
    if plan.drafter.bytes is None:
        beside += ", without the drafter's"
    if verdict.fits:
        most = "" if verdict.most_slots == verdict.slots else f", {verdict.most_slots:,} at most"
        return f"fits: {wanted}{most}, {beside}"
    less = f"; {verdict.most_slots:,} would fit" if verdict.most_slots else ""
    return f"does not fit: {wanted} {beside}, short by {size(verdict.short_bytes)}{less}"


def _slots(count: int, plan: Plan) -> str:
    return f"{count:,} slot{'' if count == 1 else 's'} of {plan.cache_length:,} tokens"


def _reserve(verdict: Verdict) -> str:
    return f"{size(verdict.reserve_bytes)}, for {RESERVED_FOR}"


def duration(seconds: float) -> str:
    """Seconds for people."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
