"""What TensorRT calls while it works: its log, its progress, and where the plan's bytes go.

The classes are made from the module that is loaded, ``tensorrt`` or ``tensorrt_rtx``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from .fraction import Fraction

_KEPT = 200
_NOISE = ("Int64 binding", "cudaError 35")  # notes; the driver that a build ahead of time does without
_MOST = 600


@dataclass
class Log:
    """Errors and warnings, newest last; each is cut to a readable length."""

    errors: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, severity: int, text: str) -> None:
        """``severity`` is TensorRT's: 0 internal error, 1 error, 2 warning; what is above is not kept."""
        text = " ".join(text.split())[:_MOST]
        if severity > 2 or any(noise in text for noise in _NOISE):
            return
        kept = self.warnings if severity == 2 else self.errors
        if text not in kept:
            kept.append(text)

    def last(self, count: int = 4) -> str:
        """The newest errors, oldest first."""
        return "; ".join(list(self.errors)[-count:])


def logger(trt: Any, log: Log) -> Any:
    """A TensorRT logger that fills ``log``."""

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            log.add(int(severity), text)

    return Logger()


def monitor(trt: Any, report: Callable[[int], None], steps: int) -> Any:
    """A TensorRT progress monitor that calls ``report`` with 0..``steps`` whenever that number grows."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._fraction = Fraction()
            self._told = 0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._tell(self._fraction.start(phase_name, parent_phase, num_steps))

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._tell(self._fraction.step(phase_name, step))
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._tell(self._fraction.finish(phase_name))

        def _tell(self, reached: float) -> None:
            now = int(reached * steps)
            if now > self._told:
                self._told = now
                report(now)

    return Monitor()


def writer(trt: Any, file: BinaryIO) -> Any:
    """A TensorRT stream writer into ``file``; an ``OSError`` ends the build and is kept as ``writer.failure``."""

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
