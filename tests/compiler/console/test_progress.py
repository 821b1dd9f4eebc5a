"""Progress output: bars on a terminal, lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console
from rich.progress import Progress

from peagle.compiler.console.progress import Bars, Quiet, show_progress
from peagle.compiler.console.progress_lines import Lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_bars_and_a_file_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with show_progress() as progress:
        assert isinstance(progress, Lines)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with show_progress() as progress:
        assert isinstance(progress, Bars)
    with show_progress(quiet=True) as progress:
        assert isinstance(progress, Quiet)


def test_part_bars_disappear_and_total_bar_stays() -> None:
    shown_bars = Progress(console=Console(file=io.StringIO()), disable=True)
    bars = Bars(shown_bars)
    with bars.step("attach target"), bars.step("attach target weights", 10) as advance:
        advance(4)
        assert [(task.description, task.completed) for task in shown_bars.tasks] == [
            ("attach target", 0),
            ("  attach target weights", 4),
        ]
    assert [(task.description, task.finished) for task in shown_bars.tasks] == [("attach target", True)]
