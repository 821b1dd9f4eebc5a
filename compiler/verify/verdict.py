"""Verdicts of checks. A check that could not run has not passed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Status = Literal["passed", "failed", "not checked"]


def combined_status(statuses: Iterable[Status]) -> Status:
    """Return the combined verdict of several checks: "not checked" if there are none."""
    found = {*statuses}
    if "failed" in found:
        return "failed"
    return "not checked" if "not checked" in found or not found else "passed"
