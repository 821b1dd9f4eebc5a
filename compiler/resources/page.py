"""Formatting of an estimate for the command line."""

from __future__ import annotations

from ...graphs.targets.family import ONLY_KIND
from ..console.printing import columns, size
from .check import DOWNLOAD
from .estimate import Estimate
from .gpu_memory import RESERVED_FOR, Verdict
from .pass_tensors import TENSORS
from .speed.page import speed_notes, speed_table
from .work import duration


def render(estimate: Estimate) -> str:
    """Format the estimate as aligned text."""
    parts = [columns(_asked(estimate)), columns(_weights(estimate)), columns(_rest(estimate))]
    if estimate.speed_estimate:
        table = columns(speed_table(estimate.speed_estimate))
        parts.insert(2, f"{table}\n{columns(speed_notes(estimate.speed_estimate))}")
    return "\n\n".join(parts)


def _asked(estimate: Estimate) -> list[tuple[str, str]]:
    kinds = estimate.layers.items()
    layers = ", ".join(str(count) if kind == ONLY_KIND else f"{count} {kind}" for kind, count in kinds)
    lengths = f"max_seq_len {estimate.max_seq_len}, {estimate.drafts}"
    return [
        *([("error", f"the build would fail: {estimate.refusal}")] if estimate.refusal else []),
        *([("multiplied", estimate.multiplied)] if estimate.multiplied else []),
        ("plan", f"{estimate.model} for {estimate.lowering} in {estimate.precision} (dry run; nothing is written)"),
        ("  config from", estimate.origin),
        ("  architecture", f"{estimate.architecture}; layers: {layers}"),
        ("  precision", estimate.recipe),
        ("  lengths", f"{lengths}: {estimate.cache_length} tokens per KV-cache slot"),
    ]


def _weights(estimate: Estimate) -> list[tuple[str, str, str, str]]:
    rows = [("weights", "count", "precision", "bytes")]
    rows += [(f"  {each.role}", f"{each.count:,}", each.precision, size(each.bytes)) for each in estimate.weights]
    rows.append(("  all", f"{estimate.weight_count:,}", "", size(estimate.weight_bytes)))
    wide, wider = (max(len(row[at]) for row in rows[1:]) for at in (1, 3))
    return [(name, count.rjust(wide), precision, each.rjust(wider)) for name, count, precision, each in rows]


def _rest(estimate: Estimate) -> list[tuple[str, str]]:
    graph, host, time, kv = estimate.graph, estimate.host, estimate.time, estimate.kv
    # Nodes are counted without quantization, which adds some.
    width = f"in {estimate.drafter.precision}"
    width += "" if estimate.drafter.precision == estimate.precision else f"; {estimate.precision} adds nodes"
    rows = [
        ("drafter", _drafter(estimate)),
        ("KV cache", f"{kv.target_token_bytes:,} bytes per token, {size(kv.target_slot_bytes)} per slot"),
        (
            "  of the drafter",
            "unknown"
            if kv.drafter_token_bytes is None or kv.drafter_slot_bytes is None
            else f"{kv.drafter_token_bytes:,} bytes per token, {size(kv.drafter_slot_bytes)} per slot",
        ),
        (
            "nodes",
            f"{graph.semantic:,} in the target's semantic graph, {graph.lowered:,} lowered for {estimate.lowering}; "
            f"extrapolated from {graph.traced_layers} of {sum(estimate.layers.values())} layers, {width}",
        ),
        (
            "host memory",
            f"about {size(host.bytes)} to trace and write: libraries {size(host.libraries_bytes)}, "
            f"buffers {size(host.buffer_bytes)}, graph and tables {size(host.graph_bytes)}",
        ),
        (
            "time",
            f"about {duration(time.weight_seconds)} to write weights at {size(time.bytes_per_second)}/s, below the "
            "rates of `make bench-export`; tracing, a download and the steps below are not included",
        ),
        *estimate.work.rows(),
        *([("disk", estimate.disk.describe())] if estimate.disk else []),
        *(
            ("  download", f"{size(need.bytes)} more, {need.basis}, to {need.where} ({size(need.free_bytes)} free)")
            for need in estimate.needs
            if need.name == DOWNLOAD
        ),
    ]
    if verdict := estimate.gpu:
        gpu = verdict.gpu
        rows.append(("GPU", f"{gpu.name} (sm_{gpu.sm}, {size(gpu.memory_bytes)}; {gpu.source})"))
        rows.append(("  verdict", _verdict(verdict, estimate)))
        rows.append(("  largest tensors", f"{size(verdict.tensor_bytes)} for {TENSORS}"))
        rows.append(("  reserved", f"{size(verdict.reserve_bytes)} for {RESERVED_FOR}"))
    rows += [("note", note) for note in estimate.notes]
    return [*rows, estimate.outcome.row()] if estimate.disk else rows


def _drafter(estimate: Estimate) -> str:
    head = estimate.drafter
    if not head.count or head.bytes is None:
        return head.note
    known = f"{head.count:,} weights in {head.precision}, {size(head.bytes)}"
    return f"{known}; {head.note}" if head.note else known


def _verdict(verdict: Verdict, estimate: Estimate) -> str:
    if verdict.refusal:
        return f"cannot run: {verdict.refusal}"
    slots = f"{verdict.slots:,} slot{'' if verdict.slots == 1 else 's'} of {estimate.cache_length:,} tokens"
    weights_text = f"with {size(verdict.weight_bytes)} of weights"
    weights_text += ", not counting the drafter's" if estimate.drafter.bytes is None else ""
    if verdict.fits:
        limit_text = "" if verdict.most_slots == verdict.slots else f" (at most {verdict.most_slots:,})"
        return f"fits: {slots}{limit_text}, {weights_text}"
    less = f"; {verdict.most_slots:,} would fit" if verdict.most_slots else ""
    return f"does not fit: {slots} {weights_text}, short by {size(verdict.short_bytes)}{less}"
