"""The soak test: two minutes pass, and injected faults make it fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from peagle.engines.serving.server import Server
from tests.faults import Faults
from tests.soak import Soak, Subject, _disturb, _memory, soak
from tests.traffic import Answer, Asked, answers_alone
from tests.wall_clock import HOUR, ONLY, WallClock
from tools import triton_server

pytest.importorskip("llguidance")

TOLD = """
import threading, time
while input():
    began, lock = time.monotonic(), threading.Lock()
    lock.acquire()
    lock.acquire(timeout=0.05)
    print(time.time(), time.monotonic() - began, flush=True)
"""
BY_TIME_OF_DAY = "import time\ntime.perf_counter = time.time\n"  # the clock of the engine's deadlines


@pytest.fixture(scope="module")
def right(calling_server: Server) -> dict[Asked, Answer]:
    """The answers of the demo engine."""
    return answers_alone((calling_server.host, calling_server.port))


def planted(right: dict[Asked, Answer]) -> tuple[Asked, dict[Asked, Answer]]:
    """Four requests with one letter changed in one right answer, as if the server had changed it."""
    changed = ("greedy", 0, 0)
    text, *rest = right[changed]
    wrong = {**right, changed: (text[:-1] + ("-" if text.endswith("#") else "#"), *rest)}
    return changed, {asked: wrong[asked] for asked in [changed, *right][:4]}


def test_a_wrong_answer_fails_the_soak(demo_engine: Path, right: dict[Asked, Answer]) -> None:
    changed, alone = planted(right)
    done = soak(demo_engine, 1.5, alone=alone, adds_drafters=False)
    assert done.wrong
    assert all(f"{changed}" in each for each in done.wrong), "nothing else is wrong"
    assert done.counts.total() > 0


def test_a_server_that_dies_is_reported_with_everything_else_that_was_wrong() -> None:
    died = subprocess.Popen(["true"], text=True)
    os.waitid(os.P_PID, died.pid, os.WEXITED | os.WNOWAIT)  # it is dead, but not yet removed

    def refuse() -> Mapping[Asked, Answer]:
        raise ConnectionError("refused")

    subject = Subject(
        "serve", [], [Faults(0, wrong=["no answer"])], memory=lambda: _memory(died), metrics=str, answers=refuse
    )
    done = Soak(0.0)
    _disturb(done, [subject], Faults(0), {})
    died.wait()
    assert sum("its memory cannot be read" in each for each in done.wrong) == 1
    assert any("no answer" in each for each in done.wrong)
    assert done.memory["serve"] == (0, 0, 0)


@pytest.mark.triton
def test_a_wrong_answer_of_triton_fails_the_soak(
    demo_engine: Path, right: dict[Asked, Answer], triton_launcher: Path
) -> None:
    changed, alone = planted(right)
    done = soak(demo_engine, 3, alone=alone, adds_drafters=False, triton=triton_launcher)
    of_triton = [each for each in done.wrong if each.startswith("triton: ")]
    assert of_triton
    assert all(f"{changed}" in each for each in of_triton), "nothing else is wrong"


@pytest.mark.slow
def test_a_deadline_by_the_time_of_day_fails_the_soak(
    demo_engine: Path, right: dict[Asked, Answer], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BY_TIME_OF_DAY)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    few = dict(list(right.items())[:4])
    done = soak(demo_engine, 1.5, alone=few, adds_drafters=False, seed=2, environment={"PYTHONPATH": path})
    assert any("the request timed out" in each or "_seconds_sum" in each for each in done.wrong)


def test_clock_that_jumps_moves_the_time_of_day_and_nothing_else(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    command = [sys.executable, "-c", TOLD]
    for program, follows in ((Path(sys.executable).name, True), ("another", False)):
        environment = {**os.environ, **clock.environment, ONLY: program}
        with subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin
            assert process.stdout
            for seconds in (0, HOUR, -HOUR):
                clock.move(seconds)
                process.stdin.write("tell\n")
                process.stdin.flush()
                now, waited = map(float, process.stdout.readline().split())
                assert now - time.time() == pytest.approx(seconds if follows else 0, abs=60)
                assert 0.04 < waited < 60
            assert clock.processes() == follows
            process.stdin.write("\n")


@pytest.mark.slow
def test_two_minutes_of_clients_and_faults_pass(
    drafters_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    launcher = None if triton_server.missing() else request.getfixturevalue("triton_launcher")
    done = soak(Path(shutil.copytree(drafters_folder, tmp_path / "engine")), 120, triton=launcher)
    assert done.wrong == []
