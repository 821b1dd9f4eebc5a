"""Limits of an op call: checks of attributes, and bounds on sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


def finite(value: float) -> str | None:
    """Return a complaint if an attribute is not finite."""
    return None if math.isfinite(value) else "must be finite"


def not_negative(value: float) -> str | None:
    """Return a complaint if an attribute is negative or not finite; 0 often means off."""
    return None if math.isfinite(value) and value >= 0 else "must be finite and 0 or more"


def zero_or_one(value: float) -> str | None:
    """Return a complaint if a flag is neither 0 nor 1."""
    return None if value in (0, 1) else "must be 0 or 1"


def at_least_zero(value: float) -> str | None:
    """Return a complaint if an integer is below 0."""
    return None if value >= 0 else "must be 0 or more"


def at_least_one(value: float) -> str | None:
    """Return a complaint if an attribute is below 1."""
    return None if value >= 1 else "must be 1 or more"


@dataclass(frozen=True)
class Bound:
    """A bound on a call's sizes, once all are known: ``minimum`` <= ``times`` the product of ``dims`` <= ``maximum``.

    ``minimum`` and ``maximum`` are numbers or other dimensions. ``message`` says what is wrong; names of dimensions and
    ``product`` in braces are filled in.
    """

    dims: tuple[str, ...]
    message: str
    minimum: int | str = 0
    maximum: int | str | None = None
    times: int = 1

    def check(self, sizes: Mapping[str, int]) -> str | None:
        """Return a complaint if the sizes are out of bounds and all of them, the bounds included, are known."""
        minimum, maximum = (sizes.get(end) if isinstance(end, str) else end for end in (self.minimum, self.maximum))
        if not sizes.keys() >= {*self.dims}:
            return None
        product = self.times * math.prod(sizes[name] for name in self.dims)
        if (minimum is None or minimum <= product) and (maximum is None or product <= maximum):
            return None
        return self.message.format(product=product, **sizes)
