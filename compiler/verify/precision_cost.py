"""Accuracy cost of a recipe: the engine, or its emulated recipe, compared with FP32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...plugins.number_formats import PrecisionLimits
from .bisect import Bisection
from .generation import AcceptanceLength, GreedyAgreement
from .logits import LayerError, LogitsComparison
from .precision_limits import Check
from .verdict import Status

EMULATED = "emulated on ONNX Runtime, FP32 arithmetic"
RUN = "the engine itself"
PAIR = "FP32 on ONNX Runtime"
STREAMED = "FP32 in torch, layer by layer"


@dataclass(frozen=True)
class Precision:
    """Accuracy measurements of one engine.

    ``measured``: the engine or its emulation. ``against``: the reference. ``skipped``: the reason why nothing was
    measured.

    ``layers`` describes the recipe rebuilt from the checkpoint; ``notes`` says so if it does not match the engine.
    ``drafter_acceptance`` compares the quantized drafter with the unquantized one on the same quantized target.
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
    against: str = PAIR

    @property
    def status(self) -> Status:
        """Verdict on the precision; "not checked" if nothing was measured."""
        if self.skipped or not self.checks:
            return "not checked"
        return "passed" if all(check.passed for check in self.checks) else "failed"

    def failures(self) -> list[str]:
        """Describe the failed checks."""
        return [
            f"{check.name} is {check.value:.4g}; the limit is {check.limit:.4g} for {self.recipe}"
            for check in self.checks
            if not check.passed
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the record for ``verify.json``; NaN and infinity become null."""
        extra: dict[str, Any] = {"status": self.status, "failures": self.failures()}
        if self.logits:
            extra["perplexity_increase"] = self.logits.perplexity_increase
        if self.acceptance:
            extra["acceptance_change"] = self.acceptance.change
        return finite(extra | asdict(self))


def finite(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` for JSON; NaN and infinity become null."""
    return dict(_numbers(content))


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_numbers(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
