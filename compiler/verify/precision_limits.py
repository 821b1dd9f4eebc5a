"""What a precision may cost: limits by recipe, and the measures that are held against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from .generation import AcceptanceLength
from .logits import LogitsComparison


@dataclass(frozen=True)
class PrecisionLimits:
    """What a precision may cost.

    A relative increase of perplexity, a mean divergence of the logits in nats, a relative loss of acceptance length.
    Perplexity can fall by chance while a model changes; the divergence of the logits cannot, so it has a limit as well.
    """

    perplexity_increase: float
    kl_mean: float
    acceptance_drop: float


LIMITS: Mapping[str, PrecisionLimits] = {
    "fp32": PrecisionLimits(0.001, 0.001, 0.03),
    "fp16": PrecisionLimits(0.005, 0.01, 0.03),
    "bf16": PrecisionLimits(0.005, 0.02, 0.03),
    "fp8": PrecisionLimits(0.01, 0.05, 0.03),
    "mxfp8": PrecisionLimits(0.01, 0.05, 0.03),
    "int8": PrecisionLimits(0.02, 0.05, 0.03),
    "int4": PrecisionLimits(0.05, 0.15, 0.05),
}
_CACHES = {"int8": PrecisionLimits(0.005, 0.01, 0.03)}  # where they alone round


def limits_of(recipe: str, kv_cache: str) -> PrecisionLimits:
    """The limits of a recipe, or those of its caches where they are wider."""
    limits = LIMITS[recipe]
    caches = _CACHES.get(kv_cache, limits)
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
