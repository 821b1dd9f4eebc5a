"""Values clipped by calibrated ranges: how many, in which inputs, and whether other texts are likely to add more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ....plugins.problems import counted

Array = np.ndarray[Any, Any]

# Limits for a warning: the share of clipped values, and the largest value relative to the range.
MAX_SHARE, MAX_BEYOND = 0.001, 4.0
# The largest values of two halves of the samples differ this much: neither half is conclusive.
MAX_RATIO = 2.0
_MAX_LISTED = 8


@dataclass(frozen=True)
class Clipped:
    """An input with a ``share`` of its values clipped; the largest is ``beyond`` times the range."""

    name: str
    share: float
    beyond: float

    @property
    def deserves_warning(self) -> bool:
        """True if it deserves a warning."""
        return self.share > MAX_SHARE or self.beyond > MAX_BEYOND


@dataclass(frozen=True)
class Saturation:
    """Clipping by the ranges of ``inputs`` inputs and caches; an expert's input counts as one.

    ``clipped``: in the samples themselves, worst first; empty for ``max``. ``apart``: the largest ratio between the
    maxima of two halves of the samples, over ``compared`` inputs, found in ``widest``; ``unsettled`` of them exceed
    ``MAX_RATIO``. Experts are not compared, because some see few tokens.
    """

    inputs: int
    clipped: tuple[Clipped, ...]
    compared: int
    apart: float
    widest: str
    unsettled: int

    @classmethod
    def of(cls, ranges: Mapping[str, Array], clipped: Mapping[str, Array], peaks: Mapping[str, Array]) -> Saturation:
        """Compute it from measurements: ``ranges``, shares ``clipped``, ``peaks [..., 2]`` of the two halves."""
        cut = [
            Clipped(label, float(share), float(largest / limit))
            for name, shares in clipped.items()
            for label, share, limit, largest in _each(name, shares, ranges[name], peaks[name].max(-1))
            if share
        ]
        halves = {name: both for name, both in peaks.items() if both.ndim == 1 and both.all()}
        apart = {name: float(both.max() / both.min()) for name, both in halves.items()}
        widest = max(apart, key=lambda name: apart[name], default="")
        return cls(
            inputs=sum(values.size for values in ranges.values()),
            clipped=tuple(sorted(cut, key=lambda each: (each.deserves_warning, each.beyond, each.share), reverse=True)),
            compared=len(apart),
            apart=apart.get(widest, 1.0),
            widest=widest,
            unsettled=sum(value > MAX_RATIO for value in apart.values()),
        )

    def record(self) -> dict[str, Any]:
        """Return the data for a report."""
        return {
            "inputs": self.inputs,
            "clipped": len(self.clipped),
            "worst": [asdict(each) for each in self.clipped[:_MAX_LISTED]],
            "halves": {
                "inputs": self.compared,
                "apart": self.apart,
                "in": self.widest,
                "unsettled": self.unsettled,
                "limit": MAX_RATIO,
            },
        }

    def warnings(self) -> list[str]:
        """Return warnings for the user, if any."""
        warnings = []
        if worst := [each for each in self.clipped if each.deserves_warning]:
            first = worst[0]
            warnings.append(
                f"the calibrated ranges clip many values of {counted(worst, 'input')}: {first.share:.2%} of the inputs "
                f"of {first.name}, up to {first.beyond:.3g} times its range; --calib-method max clips no values"
            )
        if self.unsettled:
            warnings.append(
                f"the largest values of two halves of the samples differ by more than a factor of {MAX_RATIO:g} in "
                f"{self.unsettled} of {self.compared} inputs, at most by a factor of {self.apart:.3g} ({self.widest}); "
                "other texts may exceed the calibrated ranges, so use more samples (--calib-samples, --calib-data)"
            )
        return warnings


def _each(name: str, *values: Array) -> Iterator[tuple[Any, ...]]:
    """Yield the name with the values of each expert, or of the single input."""
    if not values[0].ndim:
        yield (name, *values)
    else:
        for expert, numbers in enumerate(zip(*values, strict=True)):
            yield f"{name}, expert {expert}", *numbers
