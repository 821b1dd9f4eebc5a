"""Progress without a terminal: a line per finished step, and at least one every ten seconds (simulated clock)."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.console.progress_lines import Bytes, Lines, Tokens

PAUSE = 0.5  # between two polls of the thread


class Clock:
    """A manual clock, with the output and its times."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[tuple[float, str]] = []
        self.lines = Lines(lambda text: self.said.append((self.now - 100, text)), lambda: self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass; the thread would look twice a second."""
        end = self.now + seconds
        while self.now + PAUSE <= end:
            self.now += PAUSE
            self.lines.beat()
        self.now = end


def test_each_phase_has_one_line_with_its_time() -> None:
    clock = Clock()
    with clock.lines.step("read checkpoints"):
        clock.wait(0.5)
    with clock.lines.step("trace target"):
        clock.wait(3.25)
    assert [text for _, text in clock.said] == ["read checkpoints ... 0.5 s", "trace target ... 3.2 s"]


def test_long_work_reports_progress() -> None:
    clock = Clock()
    with clock.lines.step("hash the checkpoints"), clock.lines.step("read all weights", 200) as advance:
        clock.wait(5)
        advance(50)
        clock.wait(7)
        advance(100)
        clock.wait(8)
    with clock.lines.step("import torch"):
        clock.wait(10)
    assert clock.said == [
        (9, "read all weights: 25% after 9 s, about 27 s left"),
        (18, "read all weights: 75% after 18 s, about 6 s left"),
        (20, "read all weights ... 20.0 s"),
        (20, "hash the checkpoints ... 20.0 s"),
        (29, "import torch: 9 s"),
        (30, "import torch ... 10.0 s"),
    ]


@pytest.mark.parametrize(
    ("total", "told"), [(Bytes(18_600_000_000), "3.1 of 18.6 GB"), (Tokens(6_000), "1,000 of 6,000 tokens")]
)
def test_totals_with_a_unit_show_it(total: Bytes | Tokens, told: str) -> None:
    said: list[str] = []
    now = [0.0]
    lines = Lines(said.append, lambda: now[0])
    with lines.step("work", total) as advance:
        advance(total // 6)
        now[0] = 10.0
        lines.beat()
    assert said[0] == f"work: 17%, {told}, after 10 s, about 50 s left"


def test_hours_are_shown_in_minutes_and_unstarted_work_has_no_estimate() -> None:
    clock = Clock()
    with clock.lines.step("attach target weights", 1000) as advance:
        clock.wait(9)
        advance(2)
        clock.wait(9)
        advance(98)
        clock.wait(600)
    told = [text for at, text in clock.said if at in (9, 18, 603)]
    assert told == [
        "attach target weights: 0% after 9 s",
        "attach target weights: 0% after 18 s, about 150 min left",
        "attach target weights: 10% after 10 min, about 90 min left",
    ]


def test_parts_that_take_no_time_have_no_line() -> None:
    clock = Clock()
    with clock.lines.step("attach target"):
        with clock.lines.step("attach target weights", 10):
            clock.wait(0.5)
        with clock.lines.step("attach target"):
            clock.wait(5)
    assert [text for _, text in clock.said] == ["attach target ... 5.5 s"]


def test_failed_step_prints_no_line() -> None:
    clock = Clock()
    with pytest.raises(KeyError), clock.lines.step("trace target"):
        raise KeyError
    clock.wait(9)
    assert clock.said == [(9, "running for 9 s")]


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "wait"]), st.floats(0, 60)), max_size=30))
def test_there_is_never_silence_for_ten_seconds(work: list[tuple[str, float]]) -> None:
    clock = Clock()
    with ExitStack() as all_work:
        running = []
        for what, seconds in work:
            if what == "begin":
                running.append(all_work.enter_context(ExitStack()))
                running[-1].enter_context(clock.lines.step("work", 100))
            elif what == "end" and running:
                running.pop().close()
            else:
                clock.wait(seconds)
    times = [0.0, *(time for time, _ in clock.said), clock.now - 100]
    assert all(later - earlier < 10 for earlier, later in pairwise(times))


def test_heartbeat_thread_runs_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    beaten = threading.Event()
    lines = Lines(lambda text: None, lambda: 0.0)
    monkeypatch.setattr(lines, "beat", beaten.set)
    count = threading.active_count()
    with lines.heartbeat():
        assert beaten.wait(60)
    assert threading.active_count() == count
