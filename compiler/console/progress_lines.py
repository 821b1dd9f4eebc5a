"""Progress without a terminal: a line for each finished step, and periodic lines while one runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

EVERY = 9.0  # maximum seconds between lines; readers may rely on ten
SHORT = 1.0  # nested steps shorter than this get no line
_UNITS = ((10**9, "GB"), (10**6, "MB"), (1000, "kB"))
_MINUTES = 100  # seconds from which times are shown in minutes


class Tokens(int):
    """A total in tokens, which progress shows beside the percentage."""

    def reached(self, done: int) -> str:
        """Describe how many of them are done."""
        return f"{done:,} of {self:,} tokens"


class Bytes(int):
    """A total in bytes, which progress shows as sizes beside the percentage."""

    def reached(self, done: int) -> str:
        """Describe how much of it is done: ``3.1 of 18.6 GB``."""
        unit, name = next((each for each in _UNITS if self >= each[0]), _UNITS[-1])
        return f"{done / unit:.1f} of {self / unit:.1f} {name}"


@dataclass(eq=False)
class _Work:
    """A running step: ``done`` of ``total``, if that is known."""

    text: str
    total: int | None
    started: float
    done: int = 0
    is_reported: bool = False

    def advance(self, amount: int) -> None:
        self.done += amount

    def so_far(self, now: float) -> str:
        """Describe the progress, the time so far and the estimated time left."""
        seconds = now - self.started
        if not self.total:
            return f"{self.text}: {_time(seconds)}"
        sizes = f", {self.total.reached(self.done)}," if isinstance(self.total, Bytes | Tokens) else ""
        text = f"{self.text}: {self.done / self.total:.0%}{sizes} after {_time(seconds)}"
        return f"{text}, about {_time(seconds * (self.total / self.done - 1))} left" if self.done else text


def _time(seconds: float) -> str:
    """Format seconds, or minutes for long times."""
    return f"{seconds:.0f} s" if seconds < _MINUTES else f"{seconds / 60:.0f} min"


class Lines:
    """Progress as lines: ``trace target ... 3.2 s`` at the end, ``attach: 40% after 18 s, about 27 s left`` during it.

    A nested step gets a line only if it takes long.
    """

    def __init__(
        self,
        say: Callable[[str], object] = lambda text: print(text, file=sys.stderr, flush=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._clock = say, clock
        self._open: list[_Work] = []
        self._lock = threading.Lock()
        self._began = self._last = clock()

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Report a step. A failed step gets no line, since its error follows."""
        work = _Work(text, total, self._clock())
        self._open.append(work)
        try:
            yield work.advance
        finally:
            self._open.remove(work)
        seconds = self._clock() - work.started
        if not self._open or ((seconds >= SHORT or work.is_reported) and self._open[-1].text != text):
            self._line(f"{text} ... {seconds:.1f} s")

    def beat(self) -> None:
        """Print the progress if no line was printed for a while."""
        now = self._clock()
        if now - self._last < EVERY:
            return
        work = next(reversed(self._open), None)
        if work is None:
            self._line(f"running for {now - self._began:.0f} s")
        else:
            work.is_reported = True
            self._line(work.so_far(now))

    @contextmanager
    def heartbeat(self) -> Iterator[Lines]:
        """Call ``beat`` from a thread while the block runs."""
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(0.5):
                self.beat()

        thread = threading.Thread(target=tick, name="progress", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()

    def _line(self, text: str) -> None:
        with self._lock:
            self._last = self._clock()
            self._say(text)
