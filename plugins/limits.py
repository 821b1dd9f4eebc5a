"""Limits of a call of an op: checks of its attributes, and bounds on its sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


def finite(value: float) -> str | None:
    """Complain of an attribute that is not finite."""
    return None if math.isfinite(value) else "must be finite"


def not_negative(value: float) -> str | None:
    """Complain of an attribute below 0, or not finite; 0 often means off."""
    return None if math.isfinite(value) and value >= 0 else "must be finite and 0 or more"


def zero_or_one(value: float) -> str | None:
    """Complain of a flag that is neither."""
    return None if value in (0, 1) else "must be 0 or 1"


def at_least_zero(value: float) -> str | None:
    """Complain of a whole number below 0."""
    return None if value >= 0 else "must be 0 or more"


def at_least_one(value: float) -> str | None:
    """Complain of an attribute below 1."""
    return None if value >= 1 else "must be 1 or more"


@dataclass(frozen=True)
class Bound:
    """A bound on the sizes of a call, checked once all are known: ``least`` <= the product of ``dims`` <= ``most``.

    ``most`` is a number, or another dimension. ``complaint`` says what is wrong, with names of dimensions, or
    ``product``, in braces.
    """

    dims: tuple[str, ...]
    complaint: str
    least: int = 0
    most: int | str | None = None

    def check(self, sizes: Mapping[str, int]) -> str | None:
        """Complain of sizes that are out of it, if they and the most are among these."""
        most = sizes.get(self.most) if isinstance(self.most, str) else self.most
        if not sizes.keys() >= {*self.dims}:
            return None
        product = math.prod(sizes[name] for name in self.dims)
        if self.least <= product and (most is None or product <= most):
            return None
        return self.complaint.format(product=product, **sizes)
