"""Numbers that a range cuts off: how many were, in which inputs, and whether other texts are likely to have more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ....plugins.problems import counted

Array = np.ndarray[Any, Any]

# What is worth a warning: a method that cuts off so large a share, or numbers so many times as large as the range.
MOST_SHARE, MOST_BEYOND = 0.001, 4.0
# Half of the samples would have cut off what the other half has: the largest number is settled by neither.
MOST_APART = 2.0
_WORST = 8


@dataclass(frozen=True)
class Clipped:
    """An input of which a ``share`` of the numbers seen is cut off; the largest is ``beyond`` times the range."""

    name: str
    share: float
    beyond: float

    @property
    def matters(self) -> bool:
        """Whether it is worth a warning."""
        return self.share > MOST_SHARE or self.beyond > MOST_BEYOND


@dataclass(frozen=True)
class Saturation:
    """What the ranges of ``inputs`` inputs and caches cut off; an expert's input counts as one.

    ``clipped``: of the samples themselves, worst first; by ``max`` none. ``apart``: how many times as large the largest
    number of one half of the samples is as that of the other, at most of the ``compared`` inputs, in ``widest``; in
    ``unsettled`` of them it is more than ``MOST_APART``. Experts are left out of that: some see few tokens.
    """

    inputs: int
    clipped: tuple[Clipped, ...]
    compared: int
    apart: float
    widest: str
    unsettled: int

    @classmethod
    def of(cls, ranges: Mapping[str, Array], clipped: Mapping[str, Array], peaks: Mapping[str, Array]) -> Saturation:
        """Work it out from what was measured: ``ranges``, shares ``clipped``, ``peaks [..., 2]`` of the two halves."""
        cut = [
            Clipped(said, float(share), float(largest / limit))
            for name, shares in clipped.items()
            for said, share, limit, largest in _each(name, shares, ranges[name], peaks[name].max(-1))
            if share
        ]
        halves = {name: both for name, both in peaks.items() if both.ndim == 1 and both.all()}
        apart = {name: float(both.max() / both.min()) for name, both in halves.items()}
        widest = max(apart, key=lambda name: apart[name], default="")
        return cls(
            inputs=sum(values.size for values in ranges.values()),
            clipped=tuple(sorted(cut, key=lambda each: (each.matters, each.beyond, each.share), reverse=True)),
            compared=len(apart),
            apart=apart.get(widest, 1.0),
            widest=widest,
            unsettled=sum(value > MOST_APART for value in apart.values()),
        )

    def record(self) -> dict[str, Any]:
        """What a report has of it."""
        return {
            "inputs": self.inputs,
            "clipped": len(self.clipped),
            "worst": [asdict(each) for each in self.clipped[:_WORST]],
            "halves": {
                "inputs": self.compared,
                "apart": self.apart,
                "in": self.widest,
                "unsettled": self.unsettled,
                "limit": MOST_APART,
            },
        }

    def warnings(self) -> list[str]:
        """What a user should know, if anything."""
        told = []
        if worst := [each for each in self.clipped if each.matters]:
            first = worst[0]
            told.append(
                f"ranges cut off much of {counted(worst, 'input')}: {first.share:.2%} of the numbers that enter "
                f"{first.name}, up to {first.beyond:.3g} times its range; --calib-method max cuts off none of them"
            )
        if self.unsettled:
            told.append(
                f"the largest numbers of two halves of the samples are more than {MOST_APART:g} times apart in "
                f"{self.unsettled} of {self.compared} inputs, at most in {self.widest} ({self.apart:.3g} times): other "
                "texts may go beyond these ranges; more samples (--calib-samples, --calib-data) settle them"
            )
        return told


def _each(name: str, *values: Array) -> Iterator[tuple[Any, ...]]:
    """The name with the numbers of each expert, or of the one input that there is."""
    if not values[0].ndim:
        yield (name, *values)
    else:
        for expert, numbers in enumerate(zip(*values, strict=True)):
            yield f"{name}, expert {expert}", *numbers
