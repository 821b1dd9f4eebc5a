"""Profiling of rounds: the times of phases, passes and layers, and NVTX ranges around them.

Ranges appear in Nsight Systems if the package ``nvtx`` is installed. A ``Profiler`` collects times on request.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any, ParamSpec, TypeVar

IN_PREFILL, IN_ROUND = "prefill", "round"  # phases
_DOMAIN = "peagle"
_P = ParamSpec("_P")
_R = TypeVar("_R")


@functools.cache
def _nvtx() -> Any:
    try:
        return importlib.import_module("nvtx")
    except ImportError:
        return None


def nvtx_range(name: str) -> AbstractContextManager[Any]:
    """Return an NVTX range, which does nothing without the package."""
    module = _nvtx()
    return nullcontext() if module is None else module.annotate(name, domain=_DOMAIN)


def ranged(name: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Put an NVTX range of this name around every call of a function."""

    def around(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with nvtx_range(name):
                return function(*args, **kwargs)

        return call

    return around


@dataclass(frozen=True)
class LayerTimes:
    """A layer of a pass: its name, its kind (an operator, or a name without numbers), and milliseconds by pass."""

    name: str
    kind: str
    milliseconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class PassTimes:
    """All passes of a half in a phase: the seconds of each, and its layers in the order of their first run."""

    phase: str
    component: str
    seconds: list[float] = field(default_factory=list)
    layers: dict[str, LayerTimes] = field(default_factory=dict)

    def add(self, seconds: float, layers: Iterable[tuple[str, str, float]]) -> None:
        """Add a pass with the name, kind and milliseconds of its layers."""
        self.seconds.append(seconds)
        for name, kind, milliseconds in layers:
            self.layers.setdefault(name, LayerTimes(name, kind)).milliseconds.append(milliseconds)

    def kinds(self) -> list[tuple[str, int, float]]:
        """Return kinds of layers with the number of layers and all milliseconds, those with the most first."""
        found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        for layer in self.layers.values():
            count, spent = found[layer.kind]
            found[layer.kind] = count + 1, spent + sum(layer.milliseconds)
        return sorted(((kind, *each) for kind, each in found.items()), key=lambda row: -row[2])

    def as_json(self) -> dict[str, Any]:
        """Return the content for a file; ``layers`` are records of the file that trtexec writes of a profile."""
        spent = sum(sum(layer.milliseconds) for layer in self.layers.values())
        return {
            "phase": self.phase,
            "half": self.component,
            "count": len(self.seconds),
            "milliseconds": 1000 * sum(self.seconds),
            "kinds": [{"kind": kind, "layers": count, "milliseconds": ms} for kind, count, ms in self.kinds()],
            "layers": [
                {
                    "name": layer.name,
                    "timeMs": sum(layer.milliseconds),
                    "averageMs": sum(layer.milliseconds) / len(layer.milliseconds),
                    "medianMs": median(layer.milliseconds),
                    "percentage": 100 * sum(layer.milliseconds) / spent if spent else 0.0,
                }
                for layer in self.layers.values()
            ],
        }


@dataclass(frozen=True)
class EngineProfile:
    """Seconds of every prompt chunk and round, by phase, and their passes.

    Times of phases are those of this process; a pass is part of its phase.
    """

    phases: Mapping[str, list[float]]
    passes: tuple[PassTimes, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the content for a file."""
        phases = {name: {"count": len(each), "milliseconds": 1000 * sum(each)} for name, each in self.phases.items()}
        return {"phases": phases, "passes": [each.as_json() for each in self.passes]}


class Profiler:
    """Collects the times of phases and passes; what runs outside of a phase, such as checks on load, is omitted."""

    def __init__(self) -> None:
        self.current: str | None = None  # the phase that runs
        self._phases: dict[str, list[float]] = {}
        self._passes: dict[tuple[str, str], PassTimes] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block as a phase of this name."""
        self.current, started = name, time.perf_counter()
        try:
            with nvtx_range(name):
                yield
        finally:
            self.current = None
            self._phases.setdefault(name, []).append(time.perf_counter() - started)

    def add(self, phase: str | None, component: str, seconds: float, layers: Iterable[tuple[str, str, float]]) -> None:
        """Add a pass of a phase; None is outside of all phases."""
        if phase is not None:
            self._passes.setdefault((phase, component), PassTimes(phase, component)).add(seconds, layers)

    def profile(self) -> EngineProfile:
        """Return the collected times."""
        return EngineProfile(self._phases, tuple(self._passes.values()))


def phase(profiler: Profiler | None, name: str) -> AbstractContextManager[None]:
    """Put an NVTX range around the block, and count it as a phase if there is a profiler."""
    return nvtx_range(name) if profiler is None else profiler.phase(name)
