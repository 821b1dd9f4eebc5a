"""What ``verify`` found, as lines for people: a name and what is to be said."""

from __future__ import annotations

from .bisect import Cost
from .generation import Acceptance
from .layers import most_added
from .logits import LogitsComparison
from .losslessness import Losslessness
from .precision import Precision
from .run import Verification

Line = tuple[str, str]
_RANKED = 5


def lines(found: Verification) -> list[Line]:
    """One for each measure."""
    rows = lossless_lines(found.losslessness) if found.losslessness else [("speculation", f"skipped: {found.not_run}")]
    for check in found.parity:
        number = "" if check.largest_difference is None else f" ({check.largest_difference:.1e} of the largest)"
        rows.append((check.name, f"{check.status}: {check.detail}{number}"))
    rows += precision_lines(found.precision) if found.precision else []
    unknown = found.precision is not None and found.precision.status == "skipped"
    passed = "passed, but for what the precision costs" if unknown else "passed"
    return [*rows, ("result", passed if found.passed else "FAILED")]


def lossless_lines(found: Losslessness) -> list[Line]:
    """Speculation on and off."""
    rows = [
        ("compared", f"{found.prompts} prompts x {found.max_tokens} tokens, K = {found.k}"),
        ("policies", ", ".join(found.policies)),
        ("differing", f"{found.tokens_differing} of {found.tokens_compared} tokens"),
    ]
    if found.ties:
        why = "where the target itself gives either token, as plain decoding in other windows shows"
        rows.append(("ties", f"{found.ties} texts part {why}; they are compared up to there"))
    rows += [(f"acceptance length, {name}", f"{length:.2f}") for name, length in found.acceptance_length.items()]
    rows += [("note", note) for note in found.notes]
    return rows + [
        (
            f"first difference, {d.policy}, K = {d.k}, {d.prompt}",
            f"position {d.position}: {d.plain} became {d.speculative}, logits {d.margin:.2e} apart",
        )
        for d in [each for each in found.divergences if not each.tie][:10]
    ]


def precision_lines(found: Precision) -> list[Line]:
    """What the recipe costs, and where."""
    title = f"precision {found.recipe}"
    if found.skipped:
        return [(title, f"skipped: {found.skipped}")]
    rows = [(title, f"{found.status}: {found.measured}, against FP32 on ONNX Runtime")]
    limits, logits = found.limits, found.logits
    if limits and logits:
        rows.append(("measured on", f"{found.texts}: {logits.texts} texts, {logits.tokens} tokens"))
        rows.append(("perplexity", f"{_perplexity(logits)}, at most {limits.perplexity_increase:+.1%}"))
        rows.append(
            (
                "logits",
                f"divergence {logits.kl_mean:.2g} nats in the mean, at most {limits.kl_mean:.2g}; p99 "
                f"{logits.kl_p99:.2g}, max {logits.kl_max:.2g}; most likely token the same {logits.top1_agreement:.1%}",
            )
        )
    if found.layers:
        last, worst = found.layers[-1], most_added(found.layers)
        rows.append(("layers", f"error {last.error:.2%} entering layer {last.layer}; layer {worst} adds most"))
    if found.greedy:
        greedy = found.greedy
        rows.append(
            ("greedy tokens", f"{greedy.equal_share:.1%} equal; {greedy.identical} of {greedy.prompts} texts identical")
        )
    most = limits.acceptance_drop if limits else 0.0
    for name, measure in (
        ("acceptance length", found.acceptance),
        ("wide and narrow drafter", found.drafter_acceptance),
    ):
        if measure is not None:
            rows.append((name, _acceptance(measure, most)))
    rows += [("note", note) for note in found.notes]
    return rows + _bisection(found)


def _perplexity(logits: LogitsComparison) -> str:
    numbers = f"{logits.perplexity_reference:.2f} -> {logits.perplexity_candidate:.2f}"
    return f"{numbers} ({logits.perplexity_increase:+.2%})"


def _acceptance(found: Acceptance, most: float) -> str:
    change = f"{found.change:+.1%} +- {found.error:.1%}"
    return f"{found.before:.3f} -> {found.after:.3f} at K = {found.k} ({change}), at most {-most:+.0%}"


def _bisection(found: Precision) -> list[Line]:
    bisection = found.bisection
    if bisection is None:
        return []
    rows = [
        ("costs most" if i == 0 else "", f"{cost.group}: divergence {cost.kl_mean:.2g} by itself{_how(cost)}")
        for i, cost in enumerate(bisection.costs[:_RANKED])
    ]
    if not bisection.exclude:
        return [*rows, ("exclude", "nothing: it is within the limits as it is")]
    before, after = bisection.before, bisection.after
    verdict = f"reaches {bisection.goal}" if bisection.reached else f"does not reach {bisection.goal}"
    rows.append(
        (
            "excluding",
            f"{', '.join(bisection.exclude)} ({bisection.left_wide:.0%} of the narrow weights) {verdict}: divergence "
            f"{before.kl_mean:.2g} -> {after.kl_mean:.2g} (predicted {bisection.predicted:.2g}), perplexity "
            f"{before.perplexity_increase:+.2%} -> {after.perplexity_increase:+.2%}",
        )
    )
    return [*rows, ("build with", bisection.command)]


def _how(cost: Cost) -> str:
    """How to leave it wide, where that is no --exclude."""
    return "" if cost.exclude else ", wide without --kv-cache-dtype"
