"""Formatting of a speed estimate for the command line."""

from __future__ import annotations

from ...console.printing import size
from .round_estimate import RoundEstimate, SpeedEstimate

TITLE = "speed estimate"
_HEADS = ("moved", "kernels", "floor", "expected", "tokens", "tokens/s at the floor", "tokens/s expected")


def speed_table(estimate: SpeedEstimate) -> list[tuple[str, ...]]:
    """Return a row for each number of drafts."""
    rows = [(TITLE, *_HEADS), *(_row(each) for each in estimate.rounds)]
    used = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    wide = {at: max(len(row[at]) for row in rows) for at in used}
    return [tuple(row[at].rjust(wide[at]) if at else row[at] for at in used) for row in rows]


def speed_notes(estimate: SpeedEstimate) -> list[tuple[str, str]]:
    """Return rows on the device, the fastest number of drafts, and the sources of figures."""
    was_run = any(each.measured_ms for each in estimate.rounds)
    device = (
        "without a device" if estimate.device is None else f"for {estimate.device}{'' if was_run else ', not measured'}"
    )
    requests = "one request" if estimate.rows == 1 else f"{estimate.rows} requests"
    rows = [("  estimated", f"{device}: {requests} after {estimate.context:,} tokens")]
    if estimate.fastest is not None:
        k = estimate.fastest
        rows.append(("  fastest", f"K = {k} by this estimate" if k else "plain decoding by this estimate"))
    return [*rows, ("  sources", "; ".join(estimate.sources))]


def speed_rows(estimate: SpeedEstimate) -> list[tuple[str, str]]:
    """Return a row for each number of drafts, in words, and the notes: for pages of two columns."""
    (_, text), *rest = speed_notes(estimate)
    return [(TITLE, text), *((_name(each), _words(each)) for each in estimate.rounds), *rest]


def speed_line(estimate: SpeedEstimate, k: int) -> str:
    """Return the estimate for a number of drafts in one line."""
    return f"{_name(estimate.round(k)).strip()}: {_words(estimate.round(k))}; {speed_notes(estimate)[0][1]}"


def _words(each: RoundEstimate) -> str:
    parts = [size(each.bytes)]
    if each.floor_ms is not None and each.best_ms is not None and each.worst_ms is not None:
        parts += [f"floor {_milliseconds(each.floor_ms)}", f"expected {_range(each.best_ms, each.worst_ms)}"]
    if rates := _rates(each):
        parts.append(f"{rates} tokens/s")
    if each.measured_ms and each.error is not None:
        parts.append(f"measured {_milliseconds(each.measured_ms)} (the estimate is off by {each.error:+.0%})")
    return ", ".join(parts)


def _name(each: RoundEstimate) -> str:
    return f"  K = {each.k}" if each.k else "  plain"


def _milliseconds(time: float) -> str:
    return f"{time:.2f} ms" if time >= 0.1 else f"{time:.2g} ms"


def _row(each: RoundEstimate) -> tuple[str, ...]:
    floor, best, worst = each.floor_ms, each.best_ms, each.worst_ms
    at_floor = each.tokens_per_second(floor)
    return (
        _name(each),
        size(each.bytes),
        f"{each.kernels:,}" if each.kernels else "",
        "" if floor is None else _milliseconds(floor),
        "" if best is None or worst is None else _range(best, worst),
        "" if each.tokens is None else f"{each.tokens:.2f}",
        "" if at_floor is None else f"{at_floor:,.0f}",
        _rates(each),
    )


def _range(best: float, worst: float) -> str:
    return f"{best:.2f} ms" if best == worst else f"{best:.2f}-{worst:.2f} ms"


def _rates(each: RoundEstimate) -> str:
    slow, fast = each.tokens_per_second(each.worst_ms), each.tokens_per_second(each.best_ms)
    if slow is None or fast is None:
        return ""
    return f"{slow:,.0f}" if slow == fast else f"{slow:,.0f}-{fast:,.0f}"
