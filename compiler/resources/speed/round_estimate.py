"""The estimated time of a round on a device, and the tokens per second that follow from the acceptance length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ....engines.draft_methods import DraftMethod
from .acceptance_lengths import AcceptanceLengths
from .drafter_work import drafter_passes
from .pass_work import GraphWork, PassWork

SHOWN = (0, 4, 8, 16)  # numbers of drafts; 0 is plain decoding
CONTEXT = 1024  # tokens
SPEED = "speed_estimate"  # key of reports


@dataclass(frozen=True)
class PassSeconds:
    """Seconds of a pass: at the ``floor``, with no delay between kernels, and the best and the worst expected time."""

    floor: float
    best: float
    worst: float

    def __add__(self, other: PassSeconds) -> PassSeconds:
        return PassSeconds(self.floor + other.floor, self.best + other.best, self.worst + other.worst)


@dataclass(frozen=True)
class TimedDevice:
    """A device: its name, the time that it takes for a pass, and the sources. Every pass waits for ``host_seconds``."""

    name: str
    seconds: Callable[[PassWork], PassSeconds]
    sources: tuple[str, ...]
    host_seconds: float = 0.0


@dataclass(frozen=True)
class RoundEstimate:
    """A round with ``k`` drafts of all requests: what it moves and computes, its time, and its tokens.

    Times are in milliseconds, None without a device; ``tokens`` is the acceptance length, None if it is unknown.
    ``measured_ms`` is the duration in a build that measured it.
    """

    k: int
    bytes: int
    operations: int
    kernels: int
    tokens: float | None
    floor_ms: float | None = None
    best_ms: float | None = None
    worst_ms: float | None = None
    measured_ms: float | None = None

    @property
    def error(self) -> float | None:
        """The relative error of the estimate: 0.1 if it is 10% above what was measured; None if nothing was."""
        if self.expected_ms is None or not self.measured_ms:
            return None
        return self.expected_ms / self.measured_ms - 1

    @property
    def expected_ms(self) -> float | None:
        """The middle of the expected times."""
        return None if self.best_ms is None or self.worst_ms is None else (self.best_ms + self.worst_ms) / 2

    def tokens_per_second(self, milliseconds: float | None) -> float | None:
        """Return the rate at which rounds of this duration yield tokens; None if either is unknown."""
        return None if self.tokens is None or not milliseconds else self.tokens / milliseconds * 1e3

    def as_json(self) -> dict[str, Any]:
        """Return every field and the rates."""
        rates = {"floor": self.floor_ms, "slowest": self.worst_ms, "fastest": self.best_ms}
        return asdict(self) | {
            "tokens_per_second": {name: self.tokens_per_second(time) for name, time in rates.items()},
            "error": self.error,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RoundEstimate:
        """Return the round whose ``as_json`` is ``content``."""
        read: dict[str, Any] = {each.name: content.get(each.name) for each in fields(cls)}
        return cls(**read)


@dataclass(frozen=True)
class SpeedEstimate:
    """The estimated rounds of ``rows`` requests after ``context`` tokens, by number of drafts.

    ``pass_bytes`` are those of a plain pass, by kind. ``experts`` are the distinct experts that a layer is expected to
    read, by number of drafts. ``fastest`` is the number of drafts with the most tokens per second, None if that is
    unknown. ``sources`` explain every figure that is not computed from the model.
    """

    device: str | None
    context: int
    rows: int
    pass_bytes: dict[str, int]
    experts: dict[int, float]
    rounds: tuple[RoundEstimate, ...]
    fastest: int | None
    sources: tuple[str, ...]

    def round(self, k: int) -> RoundEstimate:
        """Return the round with ``k`` drafts."""
        return next(each for each in self.rounds if each.k == k)

    def as_json(self) -> dict[str, Any]:
        """Return every field, and the rates of every round."""
        return asdict(self) | {"rounds": [each.as_json() for each in self.rounds]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SpeedEstimate:
        """Return the estimate whose ``as_json`` is ``content``."""
        read: dict[str, Any] = {each.name: content.get(each.name) for each in fields(cls)}
        return cls(**read | {"rounds": tuple(map(RoundEstimate.from_json, content["rounds"]))})

    @classmethod
    def of_report(cls, report: Mapping[str, Any]) -> SpeedEstimate | None:
        """Return the estimate in a report of a build or an export; None if it has none that this version reads."""
        try:
            return cls.from_json(report[SPEED]) if report.get(SPEED) else None
        except (KeyError, TypeError, ValueError):
            return None

    def with_measured(self, measured: Mapping[int, float]) -> SpeedEstimate:
        """Return the estimate with the measured milliseconds of rounds, by number of drafts."""
        return replace(self, rounds=tuple(replace(each, measured_ms=measured.get(each.k)) for each in self.rounds))


def estimate_rounds(
    target: GraphWork,
    drafter: GraphWork | None,
    method: DraftMethod,
    device: TimedDevice | None,
    lengths: AcceptanceLengths | None,
    *,
    max_drafts: int,
    context: int = CONTEXT,
    rows: int = 1,
    shown: Sequence[int] = SHOWN,
    notes: Sequence[str] = (),
) -> SpeedEstimate:
    """Estimate the rounds with each number of drafts in ``shown``, and find the fastest up to ``max_drafts``."""
    drafting = [k for k in shown if k] if method.drafts else []

    def estimated(k: int) -> RoundEstimate:
        passes = (target.over(k + 1, context, rows=rows), *drafter_passes(drafter, method, k, context, rows))
        tokens = 1.0 if not k else lengths.tokens(k) if lengths else None
        return _round(k, passes, device, None if tokens is None else tokens * rows)

    rounds = [estimated(k) for k in (0, *drafting)]
    fastest = None
    if device and (lengths or not drafting):
        candidates = [estimated(k) for k in range(max_drafts + 1)] if drafting else rounds
        best = max(candidates, key=lambda each: each.tokens_per_second(each.expected_ms) or 0.0)
        fastest = best.k
        rounds += [best] if best.k not in (0, *drafting) else []
    plain = target.over(1, context, rows=rows)
    sources = [*(device.sources if device else ()), *([lengths.source] if lengths and drafting else ()), *notes]
    return SpeedEstimate(
        device=device.name if device else None,
        context=context,
        rows=rows,
        pass_bytes={kind: round(count) for kind, count in plain.bytes.items()},
        experts={each.k: target.experts.distinct((each.k + 1) * rows) for each in rounds} if target.experts else {},
        rounds=tuple(sorted(rounds, key=lambda each: each.k)),
        fastest=fastest,
        sources=tuple(sources),
    )


def _round(k: int, passes: Sequence[PassWork], device: TimedDevice | None, tokens: float | None) -> RoundEstimate:
    work = RoundEstimate(
        k=k,
        bytes=round(sum(each.total_bytes for each in passes)),
        operations=round(sum(each.total_operations for each in passes)),
        kernels=sum(each.kernels for each in passes),
        tokens=tokens,
    )
    if device is None:
        return work
    host = device.host_seconds * len(passes) * 1e3
    times = [device.seconds(each) for each in passes]
    floor, best, worst = (sum(getattr(time, name) for time in times) * 1e3 for name in ("floor", "best", "worst"))
    return replace(work, floor_ms=floor, best_ms=best + host, worst_ms=worst + host)
