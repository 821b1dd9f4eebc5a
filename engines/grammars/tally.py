"""Statistics of an engine's grammars: requested, compiled and failed ones."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from ...plugins.errors import UsageError


class GrammarTally:
    """Counts of one engine since it was loaded; safe from any thread.

    ``requests`` counts requests with structured outputs, by kind. ``compiled`` counts grammars, and ``compile_seconds``
    their compile time. ``refused`` counts forms that could not be compiled, and ``stuck`` texts that could not
    continue.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.compiled, self.compile_seconds = 0, 0.0
        self.refused = self.stuck = 0
        self._lock = threading.Lock()

    def begin(self, kind: str) -> None:
        """Count a request with a form of this kind."""
        with self._lock:
            self.requests[kind] += 1

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Count a compilation, or its failure."""
        started = perf_counter()
        try:
            yield
        except UsageError:
            with self._lock:
                self.refused += 1
            raise
        with self._lock:
            self.compiled += 1
            self.compile_seconds += perf_counter() - started

    def get_stuck(self) -> None:
        """Count a text that cannot continue."""
        with self._lock:
            self.stuck += 1
