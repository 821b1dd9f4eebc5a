"""Progress where nobody watches a bar move: a line for each piece of work, and one now and then while it lasts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

EVERY = 9.0  # seconds between lines at most; whoever reads may rely on ten
SHORT = 1.0  # a part that takes less is not worth a line
_MINUTES = 100  # seconds from which on minutes are told


@dataclass(eq=False)
class _Work:
    """A piece of work under way: ``done`` of ``total``, where that is known."""

    text: str
    total: int | None
    began: float
    done: int = 0
    is_told: bool = False

    def advance(self, amount: int) -> None:
        self.done += amount

    def so_far(self, now: float) -> str:
        """How far it is after which time, and about when it will be done if it goes on so."""
        seconds = now - self.began
        if not self.total:
            return f"{self.text}: {_time(seconds)}"
        told = f"{self.text}: {self.done / self.total:.0%} after {_time(seconds)}"
        return f"{told}, about {_time(seconds * (self.total / self.done - 1))} left" if self.done else told


def _time(seconds: float) -> str:
    """Seconds as they are told, or minutes of what takes many."""
    return f"{seconds:.0f} s" if seconds < _MINUTES else f"{seconds / 60:.0f} min"


class Lines:
    """Progress as lines: ``trace target ... 3.2 s`` when it is done, ``attach: 40% after 18 s, about 27 s left`` in it.

    A part of something larger has a line of its own when it takes long.
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
        """One piece of work. What fails has no line: the error that follows says more."""
        work = _Work(text, total, self._clock())
        self._open.append(work)
        try:
            yield work.advance
        finally:
            self._open.remove(work)
        seconds = self._clock() - work.began
        if not self._open or ((seconds >= SHORT or work.is_told) and self._open[-1].text != text):
            self._line(f"{text} ... {seconds:.1f} s")

    def beat(self) -> None:
        """Say how far the work is, if nothing was said for long."""
        now = self._clock()
        if now - self._last < EVERY:
            return
        work = next(reversed(self._open), None)
        if work is None:
            self._line(f"at work for {now - self._began:.0f} s")
        else:
            work.is_told = True
            self._line(work.so_far(now))

    @contextmanager
    def beating(self) -> Iterator[Lines]:
        """Have a thread look whether something has to be said."""
        ended = threading.Event()

        def beats() -> None:
            while not ended.wait(0.5):
                self.beat()

        thread = threading.Thread(target=beats, name="progress", daemon=True)
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
