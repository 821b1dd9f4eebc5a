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
        seconds = f"{now - self.began:.0f} s"
        return f"{self.text}: {self.done / self.total:.0%} after {seconds}" if self.total else f"{self.text}: {seconds}"


class Lines:
    """Progress as lines: ``trace target ... 3.2 s`` when it is done, ``attach weights: 40% after 18 s`` on the way.

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
