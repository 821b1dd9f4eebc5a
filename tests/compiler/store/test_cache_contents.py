"""The stage cache is listed and pruned: the least recently used stage first, and none in use."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.precision.calibration.resume import CalibrationFolder
from peagle.compiler.store.cache_contents import Pruned, entries, prune
from peagle.compiler.store.killed_stages import SCRATCH, SCRATCH_LOCK
from peagle.compiler.store.locks import locked, locked_file
from peagle.compiler.store.stage_origin import StageOrigin
from peagle.compiler.store.stages import Stage, StageStore

DAY = 24 * 3600
SIZE = 1000


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path / "cache", stage_origin=StageOrigin("build", "demo"))


def make(store: StageStore, name: str, key: str = "", days: float = 0) -> Stage:
    """A step of ``SIZE`` bytes and its records, last used so long ago."""

    def fill(folder: Path) -> None:
        (folder / "weights").write_bytes(bytes(SIZE))

    stage = store.run(name, [key], fill)
    os.utime(stage.path, (time.time() - days * DAY,) * 2)
    return stage


def names(root: Path) -> list[str]:
    return [entry.kind for entry in entries(root)]


def removed(done: Pruned) -> list[str]:
    return [entry.kind for entry in done.removed]


def test_missing_cache_is_empty(tmp_path: Path) -> None:
    assert entries(tmp_path / "nowhere") == []
    assert prune(tmp_path / "nowhere", max_bytes=0) == Pruned((), (), 0)


def test_every_step_lists_size_use_and_purpose(store: StageStore) -> None:
    make(store, "trace", days=3)
    make(StageStore(store.root / "exports"), "attach", days=40)
    export, trace = entries(store.root)
    assert (export.kind, export.stage_origin, trace.kind, trace.stage_origin) == (
        "exports/attach", None, "trace", StageOrigin("build", "demo"),
    )  # fmt: skip
    assert SIZE < trace.bytes < 2 * SIZE
    assert time.time() - trace.used == pytest.approx(3 * DAY, abs=60)


def test_foreign_entries_are_neither_listed_nor_removed(store: StageStore) -> None:
    theirs = store.root / "photos" / ("0" * 32)
    theirs.mkdir(parents=True)
    (theirs / "holiday.jpg").touch()
    (store.root / "timing").mkdir()
    (store.root / "timing" / "tensorrt.cache").touch()
    assert prune(store.root, older_than=0, max_bytes=0) == Pruned((), (), 0)
    assert (theirs / "holiday.jpg").exists()
    assert (store.root / "timing" / "tensorrt.cache").exists()


def test_old_steps_are_removed_with_their_locks(store: StageStore) -> None:
    old, new = make(store, "trace", days=31).path, make(store, "attach", days=29).path
    done = prune(store.root, older_than=30 * DAY)
    assert removed(done) == ["trace"]
    assert not old.exists()
    assert list(old.parent.iterdir()) == []
    assert new.exists()
    assert done.remaining_bytes == sum(entry.bytes for entry in entries(store.root))


def test_least_recently_used_steps_are_removed_first(store: StageStore) -> None:
    for days, name in enumerate(("new", "older", "oldest")):
        make(store, name, days=days)
    done = prune(store.root, max_bytes=3 * SIZE)
    assert removed(done) == ["oldest"]
    assert names(store.root) == ["older", "new"]
    assert removed(prune(store.root, max_bytes=0)) == ["older", "new"]


def test_a_step_that_was_used_again_is_young(store: StageStore) -> None:
    make(store, "trace", days=99)
    make(store, "attach", days=2)
    assert store.run("trace", [""], lambda _: None).reused
    assert removed(prune(store.root, older_than=DAY)) == ["attach"]


def test_steps_in_use_are_kept(store: StageStore) -> None:
    used, made = make(store, "trace", days=99), make(store, "attach", days=99).path
    with locked(made.with_suffix(".lock")):
        done = prune(store.root, max_bytes=0)
    assert removed(done) == []
    assert sorted(entry.kind for entry in done.in_use) == ["attach", "trace"]
    assert used.path.exists()
    assert made.exists()


def test_an_unfinished_calibration_is_a_step(store: StageStore) -> None:
    with CalibrationFolder.open(store, make, ["x"], 0) as kept:
        kept.finished()
        (kept.folder / "streams-0000.bin").write_bytes(bytes(SIZE))
        assert removed(prune(store.root, max_bytes=0)) == []
    (entry,) = entries(store.root)
    assert (entry.kind, entry.stage_origin) == ("calibrate", StageOrigin("build", "demo"))
    assert removed(prune(store.root, max_bytes=0)) == ["calibrate"]


def test_leftovers_of_killed_processes_go_first_and_always(store: StageStore) -> None:
    step = make(store, "trace").path
    killed, living = step.with_name(f".{step.name}.0123abcd"), store.root / f"{SCRATCH}1"
    killed.mkdir()
    (killed / "weights").write_bytes(bytes(SIZE))
    living.mkdir()
    with locked_file(store.root / SCRATCH_LOCK):
        done = prune(store.root)
    assert ([entry.path for entry in done.removed], done.freed_bytes) == ([killed], SIZE)
    assert removed(prune(store.root)) == ["."]
    assert names(store.root) == ["trace"]


def test_pruned_step_is_rebuilt(store: StageStore) -> None:
    make(store, "trace")
    prune(store.root, max_bytes=0)
    assert not make(store, "trace").reused


def test_dry_run_removes_nothing(store: StageStore) -> None:
    make(store, "trace")
    done = prune(store.root, max_bytes=0, dry_run=True)
    assert removed(done) == ["trace"]
    assert names(store.root) == ["trace"]


def test_hard_linked_file_counts_zero(store: StageStore, tmp_path: Path) -> None:
    path = make(store, "trace").path
    os.link(path / "weights", tmp_path / "engine")
    assert entries(store.root)[0].bytes < SIZE


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=6), st.integers(0, 8), st.none() | st.integers(0, 60))
def test_remaining_steps_fit_and_are_the_newest(
    tmp_path_factory: pytest.TempPathFactory, days: list[int], room: int, older_than: int | None
) -> None:
    store = StageStore(tmp_path_factory.mktemp("cache"))
    for number, each in enumerate(days):
        make(store, "trace", str(number), each + 0.5)
    age = None if older_than is None else float(older_than * DAY)
    before = entries(store.root)
    done = prune(store.root, older_than=age, max_bytes=room * SIZE)
    left = entries(store.root)
    assert [*done.removed, *left] == before
    assert done.remaining_bytes == sum(entry.bytes for entry in left) <= room * SIZE
    assert age is None or all(time.time() - entry.used <= age for entry in left)
