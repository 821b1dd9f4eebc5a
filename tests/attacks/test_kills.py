"""Builds that are stopped or killed at a random moment keep existing files and leave no partial ones."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest
from tests.fixtures.attacks import Size

pytestmark = pytest.mark.begins_first

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
BUILD = ("build", "demo", "--num-speculative-tokens", "4")
PROGRAM = """
from peagle.compiler.console import interrupts
watch = interrupts.watch
def watched(on_forced_exit):
    watch(on_forced_exit)
    print(".", flush=True)
interrupts.watch = watched
from peagle.compiler.cli import main
main()
"""
# Maximum lines of progress before a stop, and seconds after the last line; a stop after the end is allowed.
LONGEST = {"cold": (20, 9.0), "warm": (13, 0.5)}


@dataclass(frozen=True)
class Place:
    """Where builds happen: their cache, and the folder of the engine."""

    cache: Path
    out: Path

    def start(self) -> subprocess.Popen[bytes]:
        """Begin a build, and wait until it handles signals; before that, Python itself would."""
        environment = os.environ | {"PEAGLE_CACHE": str(self.cache)}
        command = [sys.executable, "-c", PROGRAM, *BUILD, "--out", str(self.out)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        return process

    def killed(self, number: signal.Signals, lines: int, seconds: float) -> tuple[int, str]:
        """Build, and send a signal some seconds after a line of progress; returns the exit code and the output."""
        with self.start() as process:
            assert process.stderr is not None
            said = b"".join(process.stderr.readline() for _ in range(lines))
            try:
                _, rest = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(number)
                _, rest = process.communicate(timeout=120)
        return process.returncode, (said + rest).decode()

    def remove_on_exit(self) -> list[str]:
        """Return the leftovers of an unfinished build."""
        folders = [self.out.parent, *(path for path in self.cache.glob("*") if path.is_dir())]
        return [str(path) for folder in folders for path in folder.glob(".*") if not path.name.endswith(".lock")]


def _text(engine: Path) -> str:
    manifest = Manifest.read(engine)
    check_files(manifest.files, engine)
    return Engine.load(engine, threads=1).generate(["def gcd("], SamplingParams(max_tokens=12))[0].text


def _kill(place: Place, number: signal.Signals, lines: int, seconds: float, right: str, had_one: bool) -> str:
    """Kill one build and look at what is left; returns how it ended."""
    killed_before = place.remove_on_exit()
    code, said = place.killed(number, lines, seconds)
    assert code in (0, -number if number == signal.SIGKILL else 128 + number), said
    assert "Traceback" not in said
    assert "fault" not in said
    if place.out.exists():
        assert _text(place.out) == right
    else:
        assert code != 0
        # SIGKILL may come between the two renames of a swap; the next build restores the engine
        assert not had_one or number == signal.SIGKILL
    if number != signal.SIGKILL:
        assert set(place.remove_on_exit()) <= set(killed_before)
    return "done" if code == 0 else number.name


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "cache", tmp_path / "engines" / "demo")
    made.out.parent.mkdir()
    made.cache.mkdir()
    yield made
    shutil.rmtree(tmp_path, ignore_errors=True)


def _attack(place: Place, engine: Path, kinds: Mapping[int, str], seed: int) -> Counter[str]:
    ended: Counter[str] = Counter()
    right = _text(engine)
    shutil.copytree(engine, place.out)
    for number, kind in kinds.items():
        drawn = random.Random(f"{seed} {number}")
        if kind == "cold":
            shutil.rmtree(place.cache, ignore_errors=True)
            place.cache.mkdir()
        if drawn.random() < 0.3:
            shutil.rmtree(place.out, ignore_errors=True)
        signal_number, (lines, seconds) = SIGNALS[number % len(SIGNALS)], LONGEST[kind]
        after = drawn.randint(0, lines), drawn.uniform(0.0, seconds)
        ended[f"{kind} {_kill(place, signal_number, *after, right, place.out.exists())}"] += 1
    with place.start() as process:
        _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said.decode()
    assert _text(place.out) == right
    assert place.remove_on_exit() == []
    return ended


def test_killed_build_leaves_existing_files_intact(place: Place, demo_engine: Path) -> None:
    """SIGINT and SIGKILL; SIGTERM is among the many below, and stops a plan in tests/compiler/tensorrt by default."""
    for stage in ("skeleton", "trace-target", "trace-drafter", "cpu-library"):
        kept = Path(os.environ["PEAGLE_CACHE"]) / stage
        shutil.copytree(kept, place.cache / stage, ignore=shutil.ignore_patterns(".*"))
    _attack(place, demo_engine, {0: "warm", 2: "warm"}, seed=2)


@pytest.mark.slow
def test_many_killed_builds_leave_existing_files_intact(place: Place, demo_engine: Path, attack_size: Size) -> None:
    """Three warm builds for a cold one; 60 attacks are half an hour."""
    kinds = {number: "warm" if number % 4 else "cold" for number in attack_size.numbers}
    print(dict(sorted(_attack(place, demo_engine, kinds, attack_size.seed).items())))
