"""Limits on the accuracy cost of a precision, and the checks against them."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from ...plugins.number_formats import NUMBER_FORMATS, PrecisionLimits
from .generation import AcceptanceLength
from .logits import LogitsComparison


def limits_of(recipe: str, kv_cache: str) -> PrecisionLimits:
    """Return the limits of a recipe; for each number the higher one of the recipe's and its KV cache type's."""
    limits = NUMBER_FORMATS[recipe].limits
    use = NUMBER_FORMATS[kv_cache].caches if kv_cache in NUMBER_FORMATS else None
    caches = use.limits if use and use.limits else limits
    return PrecisionLimits(*(max(pair) for pair in zip(astuple(limits), astuple(caches), strict=True)))


@dataclass(frozen=True)
class Check:
    """A number and its upper limit. ``note`` explains an inconclusive result."""

    name: str
    value: float
    limit: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """True if the value is within its limit; NaN is not."""
        return self.value <= self.limit


def checks_of(
    limits: PrecisionLimits,
    logits: LogitsComparison,
    acceptance: AcceptanceLength | None,
    drafter: AcceptanceLength | None,
) -> tuple[Check, ...]:
    """Return the checks of all numbers that have a limit."""
    checks = [
        Check("perplexity increase", logits.perplexity_increase, limits.perplexity_increase),
        Check("mean KL divergence of the logits", logits.kl_mean, limits.kl_mean),
    ]
    for name, measure in (("acceptance length", acceptance), ("acceptance length, drafter alone", drafter)):
        if measure is not None:
            checks.append(_acceptance(name, measure, limits.acceptance_drop))
    return tuple(checks)


def _acceptance(name: str, measure: AcceptanceLength, limit: float) -> Check:
    """Check the drop in acceptance length.

    A drop above the limit passes if the excess is less than twice its standard error, because that may be chance. The
    drop may never be more than twice the limit: with few texts, the standard error would excuse anything.
    """
    drop, error = -measure.change, min(2 * measure.error, limit)
    doubtful = limit < drop <= limit + error
    note = (
        f"a drop of {drop:.1%} is above the limit of {limit:.0%}, but by less than twice its standard error"
        if doubtful
        else ""
    )
    return Check(f"drop in {name}", drop, limit + error if doubtful else limit, note)
