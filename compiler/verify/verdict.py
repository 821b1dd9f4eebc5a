"""What a check can come to. A check that could not be made has not passed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Status = Literal["passed", "failed", "not checked"]


def worst(statuses: Iterable[Status]) -> Status:
    """Return what several checks come to together; none at all is not checked."""
    found = {*statuses}
    if "failed" in found:
        return "failed"
    return "not checked" if "not checked" in found or not found else "passed"
