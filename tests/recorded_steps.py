"""Progress that records its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from peagle.compiler.console.progress import Advance


class RecordedSteps:
    """Progress whose ``steps`` are the texts of its steps; each step calls ``at_step``."""

    def __init__(self, at_step: Callable[[], object]) -> None:
        self.steps: list[str] = []
        self._at_step = at_step

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        """Record a step."""
        del total
        self.steps.append(text)
        self._at_step()
        yield lambda _: None
