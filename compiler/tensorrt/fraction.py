"""How far a build is, from the nested phases that TensorRT reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0
    children: set[str] = field(default_factory=set)


class Fraction:
    """A number that grows from 0 to 1; a phase counts for one step of its parent. Safe to use from several threads."""

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}
        self._reached = 0.0
        self._lock = Lock()

    def start(self, name: str, parent: str | None, steps: int) -> float:
        """A phase of ``steps`` steps begins within ``parent``."""
        with self._lock:
            self._phases[name] = _Phase(parent, max(steps, 1))
            if parent in self._phases:
                self._phases[parent].children.add(name)
            return self._now()

    def step(self, name: str, index: int) -> float:
        """Step ``index`` (from 0) of a phase is complete."""
        with self._lock:
            if name in self._phases:
                self._phases[name].done = index + 1
            return self._now()

    def finish(self, name: str) -> float:
        """A phase is over, complete or not."""
        with self._lock:
            phase = self._phases.pop(name, None)
            if phase and phase.parent in self._phases:
                self._phases[phase.parent].children.discard(name)
            if phase and phase.parent is None and not self._phases:
                self._reached = 1.0
            return self._now()

    def _now(self) -> float:
        roots = [name for name, phase in self._phases.items() if phase.parent not in self._phases]
        self._reached = max([self._reached, *map(self._of, roots)])
        return self._reached

    def _of(self, name: str) -> float:
        phase = self._phases[name]
        running = max((self._of(child) for child in phase.children), default=0.0)
        return min((phase.done + running) / phase.steps, 1.0)
