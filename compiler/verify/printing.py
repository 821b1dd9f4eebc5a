"""Format the results of ``verify`` as lines of a name and a text."""

from __future__ import annotations

from ...engines.draft_methods import METHODS
from .bisect import Cost
from .generation import AcceptanceLength
from .logits import LogitsComparison, worst_layer
from .losslessness import Losslessness
from .precision_cost import Precision
from .verify_engine import Verification

Line = tuple[str, str]
_RANKED = 5


def lines(verification: Verification) -> list[Line]:
    """Return the lines of a whole verification, one per measurement."""
    rows = [("multiplied", verification.multiplied)] if verification.multiplied else []
    if verification.losslessness:
        rows += lossless_lines(verification.losslessness)
    if verification.text or verification.parity or verification.precision:
        rows += [(f"checkpoint, {component}", source) for component, source in verification.checkpoints.items()]
    rows += [(check.name, f"{check.status}: {check.detail}") for check in verification.text]
    for check in verification.parity:
        number = (
            ""
            if check.largest_difference is None
            else f" (difference {check.largest_difference:.1e} of the largest logit)"
        )
        rows.append((check.name, f"{check.status}: {check.detail}{number}"))
    rows += precision_lines(verification.precision) if verification.precision else []
    rows += [(part, f"not checked: {why}") for part, why in verification.cannot.items()]
    rows += [(part, f"not needed: {why}") for part, why in verification.not_needed.items()]
    rows += [("left out", ", ".join(verification.left_out))] if verification.left_out else []
    return [*rows, ("result", _result(verification))]


def _result(verification: Verification) -> str:
    if verification.status == "failed":
        return "FAILED"
    if verification.status == "not checked":
        return f"NOT CHECKED: {', '.join(verification.not_checked)}"
    if verification.losslessness and verification.losslessness.is_lossy:
        return "passed; losslessness was not judged, because drafts were lossy"
    return "passed"


def lossless_lines(lossless: Losslessness) -> list[Line]:
    """Return the lines on speculation on and off."""
    wanted = f"acceptance tolerance {lossless.acceptance_tolerance:g}: differing tokens are counted, but not judged"
    method = METHODS.get(lossless.draft)
    rows = [
        *([("LOSSY", wanted)] if lossless.is_lossy else []),
        ("compared", f"{lossless.prompts} prompts x {lossless.max_tokens} tokens, K = {lossless.k}"),
        *([("drafts", method.note)] if method and method.note else []),
        *([("drafts", lossless.draft)] if lossless.draft and not method else []),
        ("sampling", ", ".join(lossless.policies)),
        *([("batch", f"1 to {lossless.batch} prompts, compared with single prompts")] if lossless.batch > 1 else []),
        ("differing", f"{lossless.tokens_differing} of {lossless.tokens_compared} tokens"),
    ]
    far = lossless.width_difference
    if far is not None:
        bits = f"differ by up to {far:.1e} of the largest" if far else "the same to the bit"
        rows.append(("logits in windows of other widths", bits))
    if lossless.ties:
        why = "where plain decoding gives either token, depending on the width of the pass"
        rows.append(("ties", f"{lossless.ties} texts diverge at a near-tie, {why}; each is compared up to its tie"))
    rows += [(f"acceptance length, {name}", f"{length:.2f}") for name, length in lossless.acceptance_length.items()]
    rows += [("note", note) for note in lossless.notes]
    return rows + [
        (
            f"first difference, {d.policy}, K = {d.k}, {d.prompt}",
            f"position {d.position}: token {d.plain} became {d.speculative}, logits differ by {d.margin:.2e}",
        )
        for d in [divergence for divergence in lossless.divergences if not divergence.tie][:10]
    ]


def precision_lines(precision: Precision) -> list[Line]:
    """Return the lines on the accuracy cost of the recipe."""
    title = f"precision {precision.recipe}"
    if precision.skipped:
        return [(title, f"not checked: {precision.skipped}")]
    rows = [(title, f"{precision.status}: {precision.measured}, compared with {precision.against}")]
    limits, logits = precision.limits, precision.logits
    if limits and logits:
        rows.append(("measured on", f"{precision.texts}: {logits.texts} texts, {logits.tokens} tokens"))
        rows.append(("perplexity", f"{_perplexity(logits)}, limit {limits.perplexity_increase:+.1%}"))
        rows.append(
            (
                "logits",
                f"mean KL divergence {logits.kl_mean:.2g} nats, limit {limits.kl_mean:.2g}; p99 "
                f"{logits.kl_p99:.2g}, max {logits.kl_max:.2g}; top-1 agreement {logits.top1_agreement:.1%}",
            )
        )
    if precision.layers:
        last, worst = precision.layers[-1], worst_layer(precision.layers)
        rows.append(("layers", f"error {last.error:.2%} at the input of layer {last.layer}; layer {worst} adds most"))
    if precision.greedy:
        greedy = precision.greedy
        rows.append(
            ("greedy tokens", f"{greedy.equal_share:.1%} equal; {greedy.identical} of {greedy.prompts} texts identical")
        )
    limit = limits.acceptance_drop if limits else 0.0
    for name, measure in (
        ("acceptance length", precision.acceptance),
        ("acceptance length, drafter alone", precision.drafter_acceptance),
    ):
        if measure is not None:
            rows.append((name, _acceptance(measure, limit)))
    rows += [("note", note) for note in precision.notes]
    return rows + _bisection(precision)


def _perplexity(logits: LogitsComparison) -> str:
    numbers = f"{logits.perplexity_reference:.2f} -> {logits.perplexity_candidate:.2f}"
    return f"{numbers} ({logits.perplexity_increase:+.2%})"


def _acceptance(measure: AcceptanceLength, limit: float) -> str:
    change = f"{measure.change:+.1%} +- {measure.error:.1%}"
    return f"{measure.before:.3f} -> {measure.after:.3f} at K = {measure.k} ({change}), limit {-limit:+.0%}"


def _bisection(precision: Precision) -> list[Line]:
    bisection = precision.bisection
    if bisection is None:
        return []
    rows = [
        (
            "highest cost" if i == 0 else "",
            f"{cost.group}: KL divergence {cost.kl_mean:.2g} when quantized alone{_remedy(cost)}",
        )
        for i, cost in enumerate(bisection.costs[:_RANKED])
    ]
    if not bisection.exclude:
        return [*rows, ("exclude", "no exclusion suggested")]
    before, after = bisection.before, bisection.after
    verdict = f"goal reached: {bisection.goal}" if bisection.reached else f"goal not reached: {bisection.goal}"
    rows.append(
        (
            "excluding",
            f"{', '.join(bisection.exclude)} ({bisection.left_wide:.0%} of the quantized weights); {verdict}; "
            f"KL divergence {before.kl_mean:.2g} -> {after.kl_mean:.2g} (predicted {bisection.predicted:.2g}), "
            f"perplexity {before.perplexity_increase:+.2%} -> {after.perplexity_increase:+.2%}",
        )
    )
    if bisection.export_with:
        rows.append(("export again with", f"{bisection.export_with}, and the other options as before"))
    return [*rows, ("rebuild with", bisection.command)]


def _remedy(cost: Cost) -> str:
    """Return how to avoid the cost of a group if --exclude cannot."""
    return "" if cost.exclude else "; omit --kv-cache-dtype to avoid it"
