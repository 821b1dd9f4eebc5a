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

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Advance
from peagle.compiler.precision.calibration.calibrate import Settings, calibrate
from peagle.compiler.precision.calibration.range_methods import Percentile
from peagle.compiler.precision.calibration.resume import CalibrationFolder
from peagle.compiler.precision.calibration.saved_ranges import Scales
from peagle.compiler.store.stages import StageStore
from tests.attacks.world import guarded
from tests.compiler.precision.calibration.conftest import Calibrate, random_samples
from tests.models import Pair

Tiny = Callable[[str], Pair]

KILLED = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.precision.calibration.calibrate import Settings, calibrate
from peagle.compiler.precision.calibration.dataset import Samples
from peagle.compiler.store.stages import StageStore

target, store, after, lists = sys.argv[1:]
seen = 0

class Cut:
    @contextmanager
    def step(self, text, total=None):
        def advance(amount):
            global seen
            seen += 1
            if seen == int(after):
                os.kill(os.getpid(), signal.SIGKILL)
        yield advance

calibrate(Target.open(Path(target)), Samples.of("random", eval(lists)), Settings(), StageStore(Path(store)), Cut())
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


class Interrupted(Steps):
    """Ctrl-C after so many calls."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def _advance(self, amount: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def content(scales: Scales) -> dict[str, bytes]:
    groups = (scales.inputs, scales.caches, scales.expert_tokens)
    return {name: value.tobytes() for group in groups for name, value in group.items()}


SAMPLES = random_samples(7, 4, 9)


@pytest.fixture(scope="module")
def killed(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stage store in which a process was killed when the first two layers were finished."""
    store = tmp_path_factory.mktemp("killed") / "store"
    lists = repr([list(each) for each in SAMPLES.ids])
    command = [sys.executable, "-c", KILLED, str(tiny("qwen3-moe").target), str(store), "8", lists]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    return store


@pytest.fixture(scope="module")
def whole(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an uninterrupted calibration gives."""
    store = StageStore(tmp_path_factory.mktemp("whole"))
    return content(calibrate(Target.open(tiny("qwen3-moe").target), SAMPLES, Settings(), store))


def _assert_resumes(calibrated: Calibrate, pair: Pair, store: Path, first: int, whole: dict[str, bytes]) -> None:
    steps = Steps()
    assert content(calibrated(pair, SAMPLES, progress=steps, store=store)) == whole
    assert steps.told == [(f"calibrate layers {first} to 6", 20 * (7 - first))]
    assert steps.advanced == 20 * (7 - first)


def test_killed_calibration_resumes(
    tiny: Tiny, calibrated: Calibrate, killed: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    shutil.copytree(killed, tmp_path / "killed")
    _assert_resumes(calibrated, tiny("qwen3-moe"), tmp_path / "killed", 2, whole)


def test_interrupted_calibration_resumes(
    tiny: Tiny, calibrated: Calibrate, whole: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        calibrated(tiny("qwen3-moe"), SAMPLES, progress=Interrupted(21), store=tmp_path / "cut")
    _assert_resumes(calibrated, tiny("qwen3-moe"), tmp_path / "cut", 6, whole)


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


def test_damaged_saved_step_is_recomputed(
    tiny: Tiny, calibrated: Calibrate, killed: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    for number, pattern in enumerate(("streams-*.bin", "ranges-0001.safetensors", "step-0002.json")):
        store = tmp_path / str(number)
        shutil.copytree(killed, store)
        (damaged,) = store.rglob(pattern)
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
        _assert_resumes(calibrated, tiny("qwen3-moe"), store, 0, whole)


def make() -> None:
    """Stand for what a calibration makes."""


def test_reuse_counts_as_a_use(tmp_path: Path) -> None:
    """`cache prune` keeps what was used recently, so a calibration that is only reused stays."""
    store = StageStore(tmp_path)
    with CalibrationFolder.open(store, make, ["x"], 0) as kept:
        kept.scratch.write_bytes(b"streams")
        kept.finish(0, {"x": np.ones(1, np.float32)})
    os.utime(kept.folder, (1000, 1000))
    with CalibrationFolder.open(store, make, ["x"], 0):
        assert kept.finished() == 1
    assert kept.folder.stat().st_mtime > 1000


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
