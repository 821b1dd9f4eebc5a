"""A forecast as the command line shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..console.printing import columns, size
from ..needs import measured
from ..needs.builder_work import BuilderWork
from ..needs.room import DOWNLOAD, Need
from .record import RESERVED_FOR, Forecast, Outcome, Verdict

if TYPE_CHECKING:
    from ..needs.build_work import BuildWork, CalibrationWork  # which needs the packages that trace


def render(forecast: Forecast) -> str:
    """The forecast as aligned text."""
    return "\n\n".join((columns(_asked(forecast)), columns(_weights(forecast)), columns(_rest(forecast))))


def _asked(forecast: Forecast) -> list[tuple[str, str]]:
    layers = ", ".join(f"{count} {kind}" for kind, count in forecast.layers.items())
    return [
        *([("refused", f"it would be refused: {forecast.refusal}")] if forecast.refusal else []),
        *([("multiplied", forecast.multiplied)] if forecast.multiplied else []),
        ("plan", f"{forecast.model} for {forecast.lowering} in {forecast.precision}; nothing is written"),
        ("  facts from", forecast.origin),
        ("  architecture", f"{forecast.architecture}; layers: {layers}"),
        ("  precision", forecast.recipe),
        (
            "  lengths",
            f"max_seq_len {forecast.max_seq_len}, {forecast.drafts}: "
            f"a slot of the KV cache has {forecast.cache_length} tokens",
        ),
    ]


def _weights(forecast: Forecast) -> list[tuple[str, str, str, str]]:
    counts = [f"{each.count:,}" for each in forecast.weights] + [f"{forecast.weight_count:,}"]
    sizes = [size(each.bytes) for each in forecast.weights] + [size(forecast.weight_bytes)]
    wide, wider = max(map(len, counts)), max(map(len, sizes))
    names = [f"  {each.role}" for each in forecast.weights] + ["  all"]
    precisions = [each.precision for each in forecast.weights] + [""]
    rows = zip(names, counts, precisions, sizes, strict=True)
    return [
        ("weights", "count".rjust(wide), "precision", "bytes".rjust(wider)),
        *((name, count.rjust(wide), precision, each.rjust(wider)) for name, count, precision, each in rows),
    ]


def _rest(forecast: Forecast) -> list[tuple[str, str]]:
    graph, host, time = forecast.graph, forecast.host, forecast.time
    rows = [
        ("drafter", _drafter(forecast)),
        ("KV cache", f"{forecast.kv.target_token_bytes:,} bytes a token, {size(forecast.kv.target_slot_bytes)} a slot"),
        ("  of the drafter", _drafter_cache(forecast)),
        (
            "nodes",
            f"{graph.semantic:,} in the target's semantic graph, {graph.lowered:,} lowered for {forecast.lowering}; "
            f"from {graph.traced_layers} of {sum(forecast.layers.values())} layers, {_one_width(forecast)}",
        ),
        (
            "host memory",
            f"about {size(host.bytes)} to trace and write: libraries {size(host.libraries_bytes)}, "
            f"buffers {size(host.buffer_bytes)}, graph and tables {size(host.graph_bytes)}",
        ),
        (
            "time",
            f"about {duration(time.trace_seconds)} to trace the target here, {duration(time.weight_seconds)} "
            f"to write weights at {size(time.bytes_per_second)}/s; a download comes on top",
        ),
        *_work(forecast.work),
        *([("disk", forecast.disk.said())] if forecast.disk else []),
        *(("  download", _download(need)) for need in forecast.needs if need.name == DOWNLOAD),
    ]
    if forecast.gpu:
        gpu = forecast.gpu.gpu
        rows.append(("GPU", f"{gpu.name} (sm_{gpu.sm}, {size(gpu.memory_bytes)}; {gpu.source})"))
        rows += [("  verdict", _verdict(forecast.gpu, forecast)), ("  kept free", _reserve(forecast.gpu))]
    rows += [("note", note) for note in forecast.notes]
    return [*rows, outcome_row(forecast.outcome)] if forecast.disk else rows


def _work(work: BuildWork) -> list[tuple[str, str]]:
    """Rows on what else a build does; each says what the figure was measured on."""
    rows = []
    if work.calibration:
        rows.append(("  calibration", _calibration(work.calibration)))
    if work.rounding_seconds:
        rows.append(
            (
                "  rounding",
                f"about {duration(work.rounding_seconds)} while weights are written, on one processor "
                "(`make bench-rounding`); less on several",
            )
        )
    if work.builder:
        rows.append(("  building", f"{memory_of(work.builder)}; {time_of(work.builder)}"))
    return rows


def _calibration(work: CalibrationWork) -> str:
    """What a calibration takes: memory of a layer, and operations, whose time depends on the machine and its load."""
    whose = "memory" if work.is_here else f"{work.device}'s memory"
    hours = work.operations / measured.CALIBRATED_BY_A_CORE / 3600
    time = (
        f"{hours:.2g} hours of one core at the {measured.CALIBRATED_BY_A_CORE / 1e9:.0f} GFLOP/s that an idle one with "
        "AVX-512 reached (benchmarks/calibration.py)"
        if work.is_here
        else f"the speed of {work.device} was not measured"
    )
    return (
        f"{work.tokens:,} tokens at most, {work.operations:.1e} operations: {time}; "
        f"about {size(work.bytes)} of {whose} for the largest layer in FP32. --scales takes saved ranges instead"
    )


def memory_of(builder: BuilderWork) -> str:
    """The memory of the process that builds a plan, and where the figure is from."""
    least = f", and {size(builder.least_bytes)} without which it was killed" if builder.least_bytes else ""
    return (
        f"about {size(builder.bytes)} of memory in a process of its own, {measured.BUILDER_PEAK} times the weights as "
        f"measured with TensorRT-RTX{least}" + ("" if builder.least_bytes else "; full TensorRT was not measured")
    )


def time_of(builder: BuilderWork) -> str:
    """How long a plan is built, as far as that is known."""
    if not builder.seconds:
        return "what full TensorRT takes of time was not measured"
    return f"about {duration(builder.seconds)}, from the single layers and the small stack of `make bench-aot`"


def outcome_row(outcome: Outcome) -> tuple[str, str]:
    """How the same command would end here."""
    if outcome.exit_code:
        return ("without --dry-run", f"it ends here with exit code {outcome.exit_code}: {outcome.why}")
    if outcome.why:
        return ("without --dry-run", f"it begins, as --ignore-limits says, although {outcome.why}")
    return ("without --dry-run", "no known blocker on this machine")


def _download(need: Need) -> str:
    return f"{size(need.bytes)} more, {need.basis}, to {need.where} ({size(need.free_bytes)} free)"


def _one_width(forecast: Forecast) -> str:
    """The type that graphs were counted in: all weights of one width; what quantizes some of them comes after."""
    traced = forecast.drafter.precision
    return f"in {traced}" if traced == forecast.precision else f"in {traced}: {forecast.precision} adds to them"


def _drafter(forecast: Forecast) -> str:
    head = forecast.drafter
    if not head.count or head.bytes is None:
        return head.note
    known = f"{head.count:,} weights in {head.precision}, {size(head.bytes)}"
    return f"{known}; {head.note}" if head.note else known


def _drafter_cache(forecast: Forecast) -> str:
    token, slot = forecast.kv.drafter_token_bytes, forecast.kv.drafter_slot_bytes
    if token is None or slot is None:
        return "unknown, as the drafter is"
    return f"{token:,} bytes a token, {size(slot)} a slot"


def _verdict(verdict: Verdict, forecast: Forecast) -> str:
    if verdict.refusal:
        return f"does not run: {verdict.refusal}"
    slots = _slots(verdict.slots, forecast)
    beside = f"beside {size(verdict.weight_bytes)} of weights"
    if forecast.drafter.bytes is None:
        beside += ", without the drafter's"
    if verdict.fits:
        most = "" if verdict.most_slots == verdict.slots else f", {verdict.most_slots:,} at most"
        return f"fits: {slots}{most}, {beside}"
    less = f"; {verdict.most_slots:,} would fit" if verdict.most_slots else ""
    return f"does not fit: {slots} {beside}, short by {size(verdict.short_bytes)}{less}"


def _slots(count: int, forecast: Forecast) -> str:
    return f"{count:,} slot{'' if count == 1 else 's'} of {forecast.cache_length:,} tokens"


def _reserve(verdict: Verdict) -> str:
    return f"{size(verdict.reserve_bytes)}, for {RESERVED_FOR}"


def duration(seconds: float) -> str:
    """Seconds for people."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
