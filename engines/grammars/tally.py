"""What became of the grammars of an engine: how many were asked for, compiled, and could not be followed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from ...plugins.errors import UsageError


class GrammarTally:
    """Counts of one engine since it was loaded; safe from any thread.

    ``requests`` that had a form, by its kind; grammars ``compiled``, and the ``compile_seconds`` of these; forms that
    were ``refused``, and texts that could not go on (``stuck``).
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.compiled, self.compile_seconds = 0, 0.0
        self.refused = self.stuck = 0
        self._lock = threading.Lock()

    def begin(self, kind: str) -> None:
        """Count a request whose text has a form of this kind."""
        with self._lock:
            self.requests[kind] += 1

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Count what is compiled within, or refused there."""
        began = perf_counter()
        try:
            yield
        except UsageError:
            with self._lock:
                self.refused += 1
            raise
        with self._lock:
            self.compiled += 1
            self.compile_seconds += perf_counter() - began

    def get_stuck(self) -> None:
        """Count a text that cannot go on."""
        with self._lock:
            self.stuck += 1
