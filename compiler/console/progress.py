"""Progress of long work: bars on a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from .progress_lines import Bytes, Lines, Tokens

if TYPE_CHECKING:
    import rich.progress

Advance = Callable[[int], None]


class Progress(Protocol):
    """Receiver of progress reports, as in ``with progress.step("attach weights", total=100) as advance: advance(1)``.

    A step without a total is shown as a spinner; a total of ``Bytes`` or ``Tokens`` is shown with its unit.
    """

    def step(self, text: str, total: int | None = None) -> AbstractContextManager[Advance]:
        """Report a step; the context yields a callable that takes each amount done."""
        ...


class Quiet:
    """Progress that shows nothing."""

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        """Run a step without showing it."""
        yield lambda _: None


class Bars:
    """Progress as rich bars on standard error; bars of nested steps disappear when done."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        self._depth = 0

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        """Show a step as a bar."""
        task = self._bars.add_task("  " * self._depth + text, total=total, reached="")
        self._depth += 1
        done, measured = 0, total if isinstance(total, Bytes | Tokens) else None

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            self._bars.update(task, advance=amount, reached=measured.reached(done) if measured else "")

        try:
            yield advance
            self._bars.update(task, total=total or 1, completed=total or 1)
        finally:
            self._depth -= 1
            if self._depth:
                self._bars.remove_task(task)


@contextmanager
def show_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Yield a receiver that shows bars if standard error is a terminal, else lines; or nothing if ``quiet``."""
    if quiet:
        yield Quiet()
        return
    if not sys.stderr.isatty():
        with Lines().heartbeat() as lines:
            yield lines
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
        TextColumn("{task.fields[reached]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield Bars(bars)
