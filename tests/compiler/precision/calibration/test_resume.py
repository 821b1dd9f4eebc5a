"""An interrupted calibration resumes, and gives the same result as an uninterrupted one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from peagle.compiler.console.progress import Advance
from peagle.compiler.precision.calibration.calibrate import Settings
from peagle.compiler.precision.calibration.dataset import Samples
from peagle.compiler.precision.calibration.range_methods import Percentile
from peagle.compiler.precision.calibration.resume import CalibrationFolder
from peagle.compiler.precision.calibration.saved_ranges import Scales
from peagle.compiler.store.stages import StageStore
from tests.attacks.world import guarded
from tests.compiler.precision.calibration.conftest import Calibrate, random_samples
from tests.models import Pair

Tiny = Callable[[str], Pair]

INTERRUPTED = """
import signal, sys
from contextlib import contextmanager
from pathlib import Path
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console import interrupts
from peagle.compiler.precision.calibration.calibrate import Settings, calibrate
from peagle.compiler.precision.calibration.dataset import Samples
from peagle.compiler.store.stages import StageStore

interrupts.watch()  # as the program does: a shell's background job would ignore Ctrl-C otherwise
target, store, number, after, lists = sys.argv[1:]
seen = 0

class Cut:
    @contextmanager
    def step(self, text, total=None):
        def advance(amount):
            global seen
            seen += 1
            if seen == int(after):
                signal.raise_signal(int(number))  # in this thread: torch has others
        yield advance

samples = Samples.of("random", eval(lists))
try:
    calibrate(Target.open(Path(target)), samples, Settings(), StageStore(Path(store)), Cut())
except KeyboardInterrupt:
    interrupts.leave(130)
"""


class Steps:
    """A ``Progress`` that records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int | None]] = []
        self.advanced = 0

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        self.told.append((text, total))
        yield self._advance

    def _advance(self, amount: int) -> None:
        self.advanced += amount


def content(scales: Scales) -> dict[str, bytes]:
    groups = (scales.inputs, scales.caches, scales.expert_tokens)
    return {name: value.tobytes() for group in groups for name, value in group.items()}


def cut(pair: Pair, samples: Samples, store: Path, number: signal.Signals, after: int) -> int:
    arguments = [str(pair.target), str(store), str(int(number)), str(after), repr([list(each) for each in samples.ids])]
    return subprocess.run([sys.executable, "-c", INTERRUPTED, *arguments], capture_output=True, check=False).returncode


@pytest.mark.parametrize(("number", "after", "first"), [(signal.SIGKILL, 8, 2), (signal.SIGINT, 21, 6)])
def test_interrupted_calibration_resumes(
    number: signal.Signals, after: int, first: int, tiny: Tiny, calibrated: Calibrate, tmp_path: Path
) -> None:
    samples, steps = random_samples(7, 4, 9), Steps()
    assert cut(tiny("qwen3-moe"), samples, tmp_path / "store", number, after) in (-number, 128 + number)
    resumed = calibrated(tiny("qwen3-moe"), samples, progress=steps)
    assert steps.told == [(f"calibrate layers {first} to 6", 20 * (7 - first))]
    assert steps.advanced == 20 * (7 - first)
    assert content(calibrated(tiny("qwen3-moe"), samples, force=True)) == content(resumed)


def test_a_finished_calibration_is_not_repeated(tiny: Tiny, calibrated: Calibrate, tmp_path: Path) -> None:
    samples, steps, again = random_samples(5), Steps(), Steps()
    first = calibrated(tiny("llama"), samples, progress=steps)
    second = calibrated(tiny("llama"), samples, progress=again)
    assert (len(steps.told), len(again.told)) == (1, 0)
    assert content(first) == content(second)
    kept = (tmp_path / "store").rglob("streams*")
    assert sum(path.stat().st_size for path in kept) == 0  # no large file remains


def test_step_flushes_only_its_own_files(tiny: Tiny, calibrated: Calibrate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a deep model flushes the files of every earlier step again, twice a step."""
    flushed: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (flushed.append(descriptor), real(descriptor))[1])
    calibrated(tiny("llama"), random_samples(5))
    steps = 7 + 2
    assert 3 * steps <= len(flushed) <= 6 * steps


def test_other_samples_methods_and_types_are_other_calibrations(tiny: Tiny, calibrated: Calibrate) -> None:
    samples, steps = random_samples(5), Steps()
    calibrated(tiny("llama"), samples, progress=steps)
    calibrated(tiny("llama"), random_samples(5, seed=1), progress=steps)
    calibrated(tiny("llama"), samples, Settings(method=Percentile(99.0)), steps)
    calibrated(tiny("llama"), samples, Settings(dtype="bfloat16"), steps)
    assert len(steps.told) == 4


def test_damaged_saved_step_is_recomputed(tiny: Tiny, calibrated: Calibrate, tmp_path: Path) -> None:
    samples = random_samples(6, 6)
    assert cut(tiny("llama"), samples, tmp_path / "cut", signal.SIGKILL, 8) == -signal.SIGKILL
    whole = content(calibrated(tiny("llama"), samples))
    for number, pattern in enumerate(("streams-*.bin", "ranges-0001.safetensors", "step-0002.json")):
        store, steps = tmp_path / str(number), Steps()
        shutil.copytree(tmp_path / "cut", store)
        (damaged,) = store.rglob(pattern)
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
        assert content(calibrated(tiny("llama"), samples, progress=steps, store=store)) == whole
        assert steps.told == [("calibrate layers 0 to 6", 12 * 7)]


def make() -> None:
    """Stand for what a calibration makes."""


@pytest.mark.parametrize("name", ["step-0000.json", "ranges-0000.safetensors", "streams-0000.bin"])
def test_pipe_instead_of_a_step_does_not_block(tmp_path: Path, name: str) -> None:
    with CalibrationFolder.open(StageStore(tmp_path), make, ["x"], 0) as kept:
        kept.scratch.write_bytes(b"streams")
        kept.finish(0, {"x": np.ones(1, np.float32)})
        assert kept.finished() == 1
        (kept.folder / name).unlink()
        os.mkfifo(kept.folder / name)
        with guarded(30):
            assert kept.finished() == 0
        assert not os.path.lexists(kept.folder / name)


@pytest.mark.parametrize("name", ["streams.partial", "step-0001.partial", "ranges-0001.safetensors"])
def test_pipe_instead_of_the_next_step_does_not_block(tmp_path: Path, name: str) -> None:
    with CalibrationFolder.open(StageStore(tmp_path), make, ["x"], 0) as kept:
        kept.scratch.write_bytes(b"streams")
        kept.finish(0, {"x": np.ones(1, np.float32)})
        os.mkfifo(kept.folder / name)
        with guarded(30):
            assert kept.finished() == 1
            kept.scratch.write_bytes(b"streams")
            kept.finish(1, {"x": np.ones(1, np.float32)})
        assert kept.finished() == 2
