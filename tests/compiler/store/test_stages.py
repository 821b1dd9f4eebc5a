"""The stage store: a stage is complete or absent, and is reused if its inputs are unchanged."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.store import stages
from peagle.compiler.store.locks import locked, locked_if_free
from peagle.compiler.store.stage_origin import StageOrigin
from peagle.compiler.store.stages import StageStore
from peagle.engines.folder.records import FileEntry
from peagle.plugins.errors import BuildError, EnvironmentProblem


class Maker:
    """Makes a stage of two files, and counts how often."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls, self.error = 0, error

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_bytes(b"a" * 1000)
        if self.error:
            raise self.error
        (folder / "b").write_bytes(b"b")


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path / "cache")


def folders(store: StageStore) -> list[str]:
    return sorted(path.name for path in (store.root / "trace").iterdir() if path.is_dir())


def test_stage_is_built_once(store: StageStore) -> None:
    make = Maker()
    first, second = store.run("trace", ["x"], make), store.run("trace", ["x"], make)
    assert make.calls == 1
    assert (first.reused, second.reused) == (False, True)
    assert first.path == second.path
    assert set(second.files) == {"sub/a", "b"} == set(first.files)
    assert second.files["sub/a"].size == 1000


def test_different_inputs_are_a_different_stage(store: StageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    paths = {store.run("trace", key, make).path for key in (["x"], ["y"], {"x": 1}, {"x": 2})}
    paths.add(store.run("lower", ["x"], make).path)
    monkeypatch.setattr(stages, "code_digest", lambda make: "other code")
    paths.add(store.run("trace", ["x"], make).path)
    assert len(paths) == make.calls == 6


def test_hashes_that_the_maker_knows_are_not_computed_again(store: StageStore) -> None:
    known = FileEntry(1, "0" * 64)

    def make(folder: Path) -> dict[str, FileEntry]:
        Maker()(folder)
        return {"b": known}

    found = store.run("trace", ["x"], make).files
    assert found["b"] == known
    assert found["sub/a"] == FileEntry(1000, hashlib.sha256(b"a" * 1000).hexdigest())


def test_force_rebuilds(store: StageStore) -> None:
    make = Maker()
    store.run("trace", ["x"], make)
    assert not StageStore(store.root, force=True).run("trace", ["x"], make).reused
    assert make.calls == 2
    assert len(folders(store)) == 1


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), SystemExit(143)])
def test_failed_stage_leaves_nothing(store: StageStore, error: BaseException) -> None:
    with pytest.raises(type(error)):
        store.run("trace", ["x"], Maker(error))
    assert folders(store) == []
    assert not store.run("trace", ["x"], Maker()).reused


def test_failed_force_keeps_the_old_stage(store: StageStore) -> None:
    store.run("trace", ["x"], Maker())
    with pytest.raises(RuntimeError):
        StageStore(store.root, force=True).run("trace", ["x"], Maker(RuntimeError()))
    assert store.run("trace", ["x"], Maker()).reused


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    path.write_bytes(b"c" + path.read_bytes()[1:])


@pytest.mark.parametrize("name", ["sub/a", "b", "stage.json", "stage.sha256"])
@pytest.mark.parametrize("damage", [Path.unlink, truncate, flip])
def test_damaged_stage_is_rebuilt(store: StageStore, name: str, damage: Callable[[Path], None]) -> None:
    make = Maker()
    stage = store.run("trace", ["x"], make)
    damage(stage.path / name)
    assert not store.run("trace", ["x"], make).reused
    assert store.run("trace", ["x"], make).reused
    assert make.calls == 2


RECORDS = {
    "empty": lambda _: {},
    "fewer files": lambda record: dict([*record.items()][1:]),
    "a list": lambda record: [record],
    "null": lambda _: None,
    "sizes without hashes": lambda record: {name: entry[:1] for name, entry in record.items()},
    "names of files elsewhere": lambda record: record | {"../../b": record["b"]},
}


def rewrite(stage: Path, shape: Callable[[Any], Any], *, sealed: bool) -> None:
    """Change the record of a stage, and its hash too if ``sealed``."""
    record = json.dumps(shape(json.loads((stage / "stage.json").read_text())))
    (stage / "stage.json").write_text(record)
    if sealed:
        (stage / "stage.sha256").write_text(hashlib.sha256(record.encode()).hexdigest())


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("shape", RECORDS)
def test_stage_with_a_foreign_record_is_rebuilt(store: StageStore, shape: str, sealed: bool) -> None:
    make = Maker()
    stage = store.run("trace", ["x"], make)
    rewrite(stage.path, RECORDS[shape], sealed=sealed)
    again = store.run("trace", ["x"], make)
    assert not again.reused
    assert again.files == stage.files


def test_record_with_fewer_files_is_invalid(store: StageStore) -> None:
    make = Maker()
    stage = store.run("trace", ["x"], make)
    rewrite(stage.path, lambda record: {"sub/a": record["sub/a"]}, sealed=False)
    (stage.path / "b").unlink()
    assert not store.run("trace", ["x"], make).reused


def add(stage: Path) -> None:
    (stage / "more").write_bytes(b"")


def link(stage: Path) -> None:
    (stage / "b").rename(stage.parent / "b")
    (stage / "b").symlink_to(stage.parent / "b")


def link_folder(stage: Path) -> None:
    (stage / "sub").rename(stage.parent / "elsewhere")
    (stage / "sub").symlink_to(stage.parent / "elsewhere")


def link_all(stage: Path) -> None:
    stage.rename(stage.parent / "elsewhere")
    stage.symlink_to(stage.parent / "elsewhere")


def pipe(stage: Path) -> None:
    (stage / "stage.json").unlink()
    os.mkfifo(stage / "stage.json")


def nest(stage: Path) -> None:
    (stage / "stage.json").write_text("[" * 100_000)


@pytest.mark.parametrize("change", [add, link, link_folder, link_all, pipe, nest])
def test_stage_with_extra_content_is_rebuilt(store: StageStore, change: Callable[[Path], None]) -> None:
    make = Maker()
    stage = store.run("trace", ["x"], make)
    change(stage.path)
    assert not store.run("trace", ["x"], make).reused
    assert not stage.path.is_symlink()
    assert store.run("trace", ["x"], make).reused


def test_leftovers_of_a_killed_process_are_removed(store: StageStore) -> None:
    stage = store.run("trace", ["x"], Maker())
    left = stage.path.with_name(f".{stage.path.name}.killed")
    stage.path.rename(left)
    assert not store.run("trace", ["x"], Maker()).reused
    assert not left.exists()


@pytest.mark.parametrize("listing", ["listdir", "scandir"])
def test_folder_that_another_process_moves_away_during_the_search_for_leftovers_is_skipped(
    store: StageStore, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    other = store.run("attach", ["y"], Maker()).path
    unfinished = other.with_name(f".{other.name}.0123abcd")
    unfinished.mkdir()
    lists = getattr(os, listing)

    def list_moved(path: Any = ".") -> Any:
        if str(path) == str(unfinished) and unfinished.exists():
            unfinished.rename(store.root / "finished")
        return lists(path)

    monkeypatch.setattr(os, listing, list_moved)
    assert not store.run("trace", ["x"], Maker()).reused


def test_leftovers_of_other_steps_are_removed(store: StageStore, tmp_path: Path) -> None:
    other = store.run("attach", ["y"], Maker()).path
    exported = StageStore(store.root / "exports").run("attach", ["z"], Maker()).path
    killed = [path.with_name(f".{path.name}.0123abcd") for path in (other, exported)]
    for left in killed:
        left.mkdir()
    with locked(other.with_suffix(".lock")):  # the process that makes it is alive
        store.run("trace", ["x"], Maker())
    assert [left.exists() for left in killed] == [True, False]
    store.run("trace", ["x2"], Maker())
    assert not killed[0].exists()
    assert other.exists()


def test_step_records_its_purpose(store: StageStore) -> None:
    stage_origin = StageOrigin("build", "demo", "head", "int8", "ort")
    stage = replace(store, stage_origin=stage_origin).run("trace", ["x"], Maker())
    assert StageOrigin.read(stage.path) == stage_origin
    assert set(stage.files) == {"sub/a", "b"}
    assert StageOrigin.read(replace(store, stage_origin=None).run("trace", ["x"], Maker()).path) == stage_origin
    assert StageOrigin.read(store.run("trace", ["y"], Maker()).path) is None


def test_the_use_of_a_step_is_noted(store: StageStore) -> None:
    path = store.run("trace", ["x"], Maker()).path
    os.utime(path, (1000, 1000))
    store.run("trace", ["x"], Maker())
    assert path.stat().st_mtime > 1000


def test_step_is_locked_while_in_use(store: StageStore) -> None:
    first, second = store.run("trace", ["x"], Maker()), store.run("trace", ["x"], Maker())
    path = first.path
    for stage in (first, second):
        with locked_if_free(path) as is_free:
            assert not is_free, stage
    del first, second, stage
    with locked_if_free(path) as is_free:
        assert is_free


def test_stage_that_a_forced_build_made_again_is_not_removed_by_the_user_of_the_old_one(store: StageStore) -> None:
    old = store.run("trace", ["x"], Maker())
    new = StageStore(store.root, force=True).run("trace", ["x"], Maker())
    with stages.exclusively(old) as is_owner:
        assert not is_owner
    del new
    assert store.run("trace", ["x"], Maker()).reused


def _build_slowly(root: Path, made: Path) -> None:
    def make(folder: Path) -> None:
        time.sleep(0.3)
        (folder / "a").write_bytes(b"a")
        (made / str(os.getpid())).touch()

    StageStore(root).run("trace", ["x"], make)


def test_two_processes_build_the_same_stage_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    (tmp_path / "made").mkdir()
    both = [context.Process(target=_build_slowly, args=(tmp_path / "cache", tmp_path / "made")) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert len(list((tmp_path / "made").iterdir())) == 1


def test_full_disk_error_states_needed_space_and_resume(store: StageStore) -> None:
    with pytest.raises(BuildError) as caught:
        store.run("trace", ["x"], Maker(OSError(errno.ENOSPC, "No space left on device")), needed=12_300_000)
    assert "full" in caught.value.what
    assert "12 MB are needed" in caught.value.why
    assert "nothing was published" in caught.value.why
    assert "a build resumes from its finished steps" in caught.value.why
    assert folders(store) == []
    with pytest.raises(BuildError) as caught:
        store.run("trace", ["x"], Maker(OSError(errno.ENOSPC, "No space left on device")))
    assert "needed" not in caught.value.why


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match="cannot write"):
        StageStore(tmp_path / "file").run("trace", ["x"], Maker())


def test_cache_location_follows_the_user_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path))
    assert StageStore.default().root == tmp_path
    monkeypatch.delenv("PEAGLE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert StageStore.default().root == tmp_path / ".cache" / "peagle-compile"


def test_missing_home_asks_for_a_cache_location(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PEAGLE_CACHE")
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(EnvironmentProblem) as caught:
        StageStore.default()
    assert "PEAGLE_CACHE" in caught.value.fix
