"""Limits of what a precision may cost, and the measures that are held against them."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from ...plugins.number_formats import NUMBER_FORMATS, PrecisionLimits
from .generation import AcceptanceLength
from .logits import LogitsComparison


def limits_of(recipe: str, kv_cache: str) -> PrecisionLimits:
    """The limits of a recipe, or those of its caches where they are wider."""
    limits = NUMBER_FORMATS[recipe].limits
    use = NUMBER_FORMATS[kv_cache].caches if kv_cache in NUMBER_FORMATS else None
    caches = use.limits if use and use.limits else limits
    return PrecisionLimits(*(max(pair) for pair in zip(astuple(limits), astuple(caches), strict=True)))


@dataclass(frozen=True)
class Check:
    """One number against its limit; both are what must not be exceeded. ``note`` says what it cannot tell, if so."""

    name: str
    value: float
    limit: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value is within its limit; a number that is none is not."""
        return self.value <= self.limit


def checks_of(
    limits: PrecisionLimits,
    logits: LogitsComparison,
    acceptance: AcceptanceLength | None,
    drafter: AcceptanceLength | None,
) -> tuple[Check, ...]:
    """Hold the measures that have a limit against it."""
    checks = [
        Check("the increase of perplexity", logits.perplexity_increase, limits.perplexity_increase),
        Check("the mean divergence of the logits", logits.kl_mean, limits.kl_mean),
    ]
    for name, measure in (("acceptance length", acceptance), ("acceptance length through the drafter alone", drafter)):
        if measure is not None:
            checks.append(_acceptance(name, measure, limits.acceptance_drop))
    return tuple(checks)


def _acceptance(name: str, measure: AcceptanceLength, limit: float) -> Check:
    """Hold the loss of acceptance length against its limit.

    A loss that is beyond it by less than twice its standard error is chance as far as this can tell, up to twice the
    limit: few texts would excuse anything.
    """
    drop, error = -measure.change, min(2 * measure.error, limit)
    doubtful = limit < drop <= limit + error
    note = f"a loss of {drop:.1%} is beyond {limit:.0%}, but within twice its standard error" if doubtful else ""
    return Check(f"the loss of {name}", drop, limit + error if doubtful else limit, note)
