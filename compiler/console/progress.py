"""What long work shows while it runs: bars on a terminal, nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import rich.progress

Advance = Callable[[int], None]


class Progress(Protocol):
    """``with progress.step("attach weights", total=...) as advance: advance(n)``; no total means a spinner."""

    def step(self, text: str, total: int | None = None) -> AbstractContextManager[Advance]:
        """One piece of work; the context yields what to call with each amount done."""
        ...


class Quiet:
    """Progress that shows nothing."""

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        """One piece of work of which nothing is shown."""
        yield lambda _: None


class Bars:
    """Progress as rich bars on standard error."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        """One piece of work with a bar of its own."""
        task = self._bars.add_task(text, total=total)
        yield lambda amount: self._bars.update(task, advance=amount)
        self._bars.update(task, total=total or 1, completed=total or 1)


@contextmanager
def shown() -> Iterator[Progress]:
    """Bars when standard error is a terminal, else quiet."""
    if not sys.stderr.isatty():
        yield Quiet()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield Bars(bars)
