"""TensorRT callbacks: log, progress, and the output stream of a plan.

The classes are created from the loaded module, ``tensorrt`` or ``tensorrt_rtx``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, BinaryIO

_MAX_MESSAGES = 200
_NOISE = ("Int64 binding", "cudaError 35")  # notes; the missing driver, which an ahead-of-time build does not need
_MAX = 600


@dataclass
class Log:
    """The errors and warnings of a build, newest last, each truncated to a readable length."""

    errors: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_MESSAGES))
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_MESSAGES))

    def add(self, severity: int, text: str) -> None:
        """Keep a message. ``severity`` is TensorRT's: 0 internal error, 1 error, 2 warning; others are dropped."""
        text = " ".join(text.split())[:_MAX]
        if severity > 2 or any(noise in text for noise in _NOISE):
            return
        messages = self.warnings if severity == 2 else self.errors
        if text not in messages:
            messages.append(text)

    def last(self, count: int = 4) -> str:
        """Return the newest errors in one line, oldest first."""
        return "; ".join(list(self.errors)[-count:])


@dataclass
class _Phase:
    """A phase of TensorRT's work; ``children`` are its running sub-phases."""

    parent: str | None
    steps: int
    done: int = 0
    children: set[str] = field(default_factory=set)


class Fraction:
    """Progress of a build, from the nested phases that TensorRT reports: a number that grows from 0 to 1.

    A phase counts as one step of its parent. Thread-safe.
    """

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}
        self._reached = 0.0
        self._lock = Lock()

    def start(self, name: str, parent: str | None, steps: int) -> float:
        """Begin a phase of ``steps`` steps within ``parent``; return the progress."""
        with self._lock:
            self._phases[name] = _Phase(parent, max(steps, 1))
            if parent in self._phases:
                self._phases[parent].children.add(name)
            return self._now()

    def step(self, name: str, index: int) -> float:
        """Mark step ``index`` (from 0) of a phase as complete; return the progress."""
        with self._lock:
            if name in self._phases:
                self._phases[name].done = index + 1
            return self._now()

    def finish(self, name: str) -> float:
        """End a phase, complete or not; return the progress."""
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


def logger(trt: Any, log: Log, tell: Callable[[int, str], None] = lambda severity, text: None) -> Any:
    """Return a TensorRT logger that fills ``log`` and calls ``tell`` with every line."""

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            log.add(int(severity), text)
            tell(int(severity), text)

    return Logger()


def monitor(trt: Any, report: Callable[[int], None], steps: int) -> Any:
    """Return a TensorRT progress monitor that calls ``report`` with 0..``steps`` whenever that number grows."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._fraction = Fraction()
            self._reported = 0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._report_step(self._fraction.start(phase_name, parent_phase, num_steps))

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._report_step(self._fraction.step(phase_name, step))
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._report_step(self._fraction.finish(phase_name))

        def _report_step(self, reached: float) -> None:
            now = int(reached * steps)
            if now > self._reported:
                self._reported = now
                report(now)

    return Monitor()


def writer(trt: Any, file: BinaryIO) -> Any:
    """Return a TensorRT stream writer into ``file``; an ``OSError`` ends the build and is kept as ``failure``."""

    class Writer(trt.IStreamWriter):
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)
            self.failure: OSError | None = None

        def write(self, data: bytes) -> int:
            try:
                file.write(data)
            except OSError as error:
                self.failure = error
                return 0
            return len(data)

    return Writer()
