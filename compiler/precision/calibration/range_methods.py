"""Choose ranges from observed values: the maximum, a percentile, or the range with the least rounding error.

The results depend on the observed values, not on their order or batching.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ....plugins.number_types import E4M3, INT8, nearest_e4m3
from .histogram import Array, Histogram

if TYPE_CHECKING:
    from torch import Tensor

RoundedTo = Literal["e4m3", "int8"]
ROUNDED: Mapping[str, RoundedTo] = {E4M3.numpy: "e4m3", INT8.numpy: "int8"}
_LARGEST = {"e4m3": E4M3.largest, "int8": INT8.largest}
_NEAREST: Mapping[str, Callable[[Array], Array]] = {"e4m3": nearest_e4m3, "int8": np.rint}


class Observer(Protocol):
    """Observes the values of one tensor, sample by sample, and chooses a range."""

    def observe(self, values: Tensor, peak: float) -> None:
        """Add finite ``values``, at least one; ``peak`` is the largest magnitude among them."""
        ...

    def amax(self) -> float:
        """Return the magnitude to map to the largest value of the quantized type; 0 if only zeros were observed."""
        ...

    def clipped(self, amax: float) -> float:
        """Return the share of observed values beyond ``amax``, which this observer returned."""
        ...


class Method(Protocol):
    """A method of choosing ranges."""

    @property
    def for_caches(self) -> Method:
        """The method for keys and values: they have calibrated ranges only if they are stored in E4M3."""
        ...

    def observer(self) -> Observer:
        """Return a new observer for one tensor."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return name and parameters, for keys and records."""
        ...


@dataclass(frozen=True)
class Max:
    """The largest observed magnitude; nothing is clipped."""

    @property
    def for_caches(self) -> Max:
        """The method itself."""
        return self

    def observer(self) -> Observer:
        """Return a new observer for one tensor."""
        return _Peak()

    def describe(self) -> dict[str, Any]:
        """Return name and parameters."""
        return {"name": "max"}


@dataclass(frozen=True)
class Percentile:
    """The magnitude that ``percent`` of the values do not exceed, within a bucket's width, at most the largest."""

    percent: float = 99.99

    @property
    def for_caches(self) -> Percentile:
        """The method itself."""
        return self

    def observer(self) -> Observer:
        """Return a new observer for one tensor."""
        return _PercentileOf(self.percent)

    def describe(self) -> dict[str, Any]:
        """Return name and parameters."""
        return {"name": "percentile", **asdict(self)}


@dataclass(frozen=True)
class Mse:
    """The clip with the least squared error in ``number_format``, among ``candidates`` even steps up to the maximum."""

    number_format: RoundedTo = "e4m3"
    candidates: int = 80

    @property
    def for_caches(self) -> Mse:
        """The method for E4M3."""
        return replace(self, number_format="e4m3")

    def observer(self) -> Observer:
        """Return a new observer for one tensor."""
        return _LeastError(self.number_format, self.candidates)

    def describe(self) -> dict[str, Any]:
        """Return name and parameters."""
        return {"name": "mse", **asdict(self)}


def rounded(values: Array, clip: float, number_format: RoundedTo) -> Array:
    """Round magnitudes to ``number_format`` with ``clip`` as its largest value; float64, saturating."""
    scale = clip / _LARGEST[number_format]
    scaled = np.minimum(values, clip) / scale
    return _NEAREST[number_format](scaled).astype(np.float64) * scale


@dataclass
class _Peak:
    largest: float = 0.0

    def observe(self, values: Tensor, peak: float) -> None:
        self.largest = max(self.largest, peak)

    def amax(self) -> float:
        return self.largest

    def clipped(self, amax: float) -> float:
        return 0.0


@dataclass(kw_only=True)
class _Counted:
    """Keeps the maximum and a histogram of magnitudes."""

    largest: float = 0.0
    histogram: Histogram = field(default_factory=Histogram)

    def observe(self, values: Tensor, peak: float) -> None:
        self.largest = max(self.largest, peak)
        self.histogram.add(values)

    def clipped(self, amax: float) -> float:
        lower, _, counts = self.histogram.buckets()
        return float(counts[lower >= amax].sum() / max(self.histogram.total, 1)) if amax < self.largest else 0.0


@dataclass
class _PercentileOf(_Counted):
    percent: float

    def amax(self) -> float:
        _, upper, counts = self.histogram.buckets()
        if not len(counts):
            return self.largest
        reached = self.histogram.zeros + np.cumsum(counts)
        at = int(np.searchsorted(reached, self.histogram.total * self.percent / 100))
        return min(float(upper[min(at, len(upper) - 1)]), self.largest)


@dataclass
class _LeastError(_Counted):
    number_format: RoundedTo
    candidates: int

    def amax(self) -> float:
        lower, upper, counts = self.histogram.buckets()
        if not len(counts):
            return self.largest
        values = np.minimum((lower + upper) / 2, self.largest)
        clips = [
            self.largest * step / self.candidates for step in range(self.candidates, 0, -1)
        ]  # the larger one if tied
        return min(clips, key=lambda clip: _error(values, counts, clip, self.number_format))


def _error(values: Array, counts: Array, clip: float, number_format: RoundedTo) -> float:
    error = values - rounded(values, clip, number_format)
    return float(np.dot(counts, error * error))
