"""What a recipe costs: the engine, or its recipe run on ONNX Runtime, against the same pair in FP32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .generation import Acceptance, GreedyAgreement
from .layers import LayerError
from .logits import LogitsComparison
from .thresholds import Limits

if TYPE_CHECKING:
    from .bisect import Bisection

Status = Literal["passed", "failed", "skipped"]
EMULATED = "emulated on ONNX Runtime, FP32 arithmetic"
RUN = "the engine itself"


@dataclass(frozen=True)
class Check:
    """One number against its limit; both are what must not be exceeded. ``note`` says what it cannot tell, if so."""

    name: str
    value: float
    limit: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """A number that is none does not pass."""
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
    limits: Limits | None = None
    logits: LogitsComparison | None = None
    layers: tuple[LayerError, ...] = ()
    greedy: GreedyAgreement | None = None
    acceptance: Acceptance | None = None
    drafter_acceptance: Acceptance | None = None
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    bisection: Bisection | None = field(default=None)

    @property
    def status(self) -> Status:
        """Skipped where nothing was measured: that is not a pass."""
        if self.skipped or not self.checks:
            return "skipped"
        return "passed" if all(check.passed for check in self.checks) else "failed"

    def failures(self) -> list[str]:
        """What is beyond its limit, and by how much."""
        return [
            f"{check.name} is {check.value:.4g}, at most {check.limit:.4g} for {self.recipe}"
            for check in self.checks
            if not check.passed
        ]

    def as_json(self) -> dict[str, Any]:
        """For ``verify.json``: numbers that are none become null."""
        extra: dict[str, Any] = {"status": self.status, "failures": self.failures()}
        if self.logits:
            extra["perplexity_increase"] = self.logits.perplexity_increase
        if self.acceptance:
            extra["acceptance_change"] = self.acceptance.change
        return finite(extra | asdict(self))


def checks_of(
    limits: Limits, logits: LogitsComparison, acceptance: Acceptance | None, drafter: Acceptance | None
) -> tuple[Check, ...]:
    """The measures that have a limit."""
    found = [
        Check("the increase of perplexity", logits.perplexity_increase, limits.perplexity_increase),
        Check("the mean divergence of the logits", logits.kl_mean, limits.kl_mean),
    ]
    for name, measure in (("acceptance length", acceptance), ("acceptance length through the drafter alone", drafter)):
        if measure is not None:
            found.append(_acceptance(name, measure, limits.acceptance_drop))
    return tuple(found)


def _acceptance(name: str, measure: Acceptance, limit: float) -> Check:
    """A loss that is beyond the limit by less than twice its standard error is chance as far as this can tell.

    Up to twice the limit: few texts would excuse anything.
    """
    drop, error = -measure.change, min(2 * measure.error, limit)
    doubtful = limit < drop <= limit + error
    note = f"a loss of {drop:.1%} is beyond {limit:.0%}, but within twice its standard error" if doubtful else ""
    return Check(f"the loss of {name}", drop, limit + error if doubtful else limit, note)


def finite(content: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON: numbers that are none become null."""
    return dict(_numbers(content))


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_numbers(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
