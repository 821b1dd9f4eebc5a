"""What a recipe costs and what it may: the engine, or its recipe run on ONNX Runtime, against the same pair in FP32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .generation import AcceptanceLength, GreedyAgreement
from .logits import LayerError, LogitsComparison

if TYPE_CHECKING:
    from .bisect import Bisection

Status = Literal["passed", "failed", "skipped"]
EMULATED = "emulated on ONNX Runtime, FP32 arithmetic"
RUN = "the engine itself"


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


@dataclass(frozen=True)
class Precision:
    """The measures of one engine. ``measured`` says what was run in its place; ``skipped`` why nothing was measured.

    ``layers`` are of the recipe rebuilt from the checkpoint; where that is not what the engine computes, ``notes`` say
    so. ``drafter_acceptance`` compares the drafter alone, wide and narrow, on the same narrow target.
    """

    recipe: str
    measured: str = ""
    skipped: str = ""
    texts: str = ""
    limits: PrecisionLimits | None = None
    logits: LogitsComparison | None = None
    layers: tuple[LayerError, ...] = ()
    greedy: GreedyAgreement | None = None
    acceptance: AcceptanceLength | None = None
    drafter_acceptance: AcceptanceLength | None = None
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    bisection: Bisection | None = field(default=None)

    @property
    def status(self) -> Status:
        """The verdict on the precision: skipped where nothing was measured, which is not a pass."""
        if self.skipped or not self.checks:
            return "skipped"
        return "passed" if all(check.passed for check in self.checks) else "failed"

    def failures(self) -> list[str]:
        """List the checks that are beyond their limit, and by how much."""
        return [
            f"{check.name} is {check.value:.4g}, at most {check.limit:.4g} for {self.recipe}"
            for check in self.checks
            if not check.passed
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the record for ``verify.json``: numbers that are none become null."""
        extra: dict[str, Any] = {"status": self.status, "failures": self.failures()}
        if self.logits:
            extra["perplexity_increase"] = self.logits.perplexity_increase
        if self.acceptance:
            extra["acceptance_change"] = self.acceptance.change
        return finite(extra | asdict(self))


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


def finite(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` for JSON: numbers that are none become null."""
    return dict(_numbers(content))


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_numbers(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
