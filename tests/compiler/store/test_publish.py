"""Publishing: an engine folder appears whole, replaces only engines, and an accident changes nothing."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.store import atomic_files, publish
from peagle.compiler.store.atomic_files import BUILDING, locked, require_space, writing
from peagle.compiler.store.publish import assembling, require_apart, require_publishable
from peagle.compiler.store.stages import Stage, StageStore
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import FILE_NAME, Manifest
from peagle.engines.folder.records import FileEntry
from peagle.plugins.errors import BuildError, EnvironmentProblem, UsageError
from tests.engines.folder.test_manifest import manifest_of

SIZES = {"target": 5_000_000, "drafter": 1_000_000}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "engines" / "mine"


def publish_engine(out: Path, text: str = "new", error: BaseException | None = None) -> None:
    with assembling(out, SIZES) as assembly:
        for part in ("target", "drafter"):
            (assembly.folder / part).mkdir()
            assembly.place_text(f"{part}/model.onnx", text)
        assembly.write_manifest(manifest_of({}))
        if error:
            raise error


def content(out: Path) -> str:
    """The text of a valid engine."""
    check_files(Manifest.read(out).files, out)
    return (out / "target" / "model.onnx").read_text()


def beside(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir())


def test_a_published_folder_is_a_whole_engine(out: Path) -> None:
    publish_engine(out)
    assert content(out) == "new"
    assert beside(out) == ["mine"]
    assert set(Manifest.read(out).files) == {"target/model.onnx", "drafter/model.onnx"}


def test_an_older_engine_is_replaced(out: Path) -> None:
    publish_engine(out, "old")
    publish_engine(out, "new")
    assert content(out) == "new"
    assert beside(out) == ["mine"]


def test_a_folder_that_is_read_is_not_replaced(out: Path) -> None:
    publish_engine(out)
    with pytest.raises(UsageError, match="is the folder that is read"):
        require_apart(out, "demo", None, str(out / ".." / out.name))
    require_apart(out, "demo", None, str(out.parent))


def test_a_damaged_engine_is_replaced(out: Path) -> None:
    publish_engine(out, "old")
    (out / FILE_NAME).write_text("{")
    publish_engine(out)
    assert content(out) == "new"


def test_an_empty_folder_is_taken(out: Path) -> None:
    out.mkdir(parents=True)
    publish_engine(out)
    assert content(out) == "new"


def test_nothing_but_an_engine_is_replaced(out: Path) -> None:
    out.mkdir(parents=True)
    (out / "thesis.tex").write_text("years of work")
    for attempt in (lambda: require_publishable(out), lambda: publish_engine(out)):
        with pytest.raises(UsageError, match="not an engine folder"):
            attempt()
    assert beside(out) == ["mine"]
    file, dangling = out.parent / "file", out.parent / "link"
    file.write_text("x")
    dangling.symlink_to("nowhere")
    for path in (file, dangling):
        with pytest.raises(UsageError):
            require_publishable(path)


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), SystemExit(143)])
def test_an_interruption_changes_nothing(out: Path, before: str | None, error: BaseException) -> None:
    if before:
        publish_engine(out, before)
    with pytest.raises(type(error)):
        publish_engine(out, "new", error)
    assert beside(out) == (["mine"] if before else [])
    if before:
        assert content(out) == before


@pytest.mark.parametrize("step", ["flush_tree", "move_into_place"])
@pytest.mark.parametrize("before", [None, "old"])
def test_an_interruption_at_the_last_moment_changes_nothing(
    out: Path, before: str | None, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before:
        publish_engine(out, before)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(publish, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        publish_engine(out)
    assert beside(out) == (["mine"] if before else [])
    if before:
        assert content(out) == before


def test_a_failing_swap_puts_the_older_engine_back(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_engine(out, "old")
    rename = Path.rename

    def fail_for_the_new(self: Path, target: Path) -> Path:
        if self.name.endswith(BUILDING) and Path(target) == out:
            raise OSError(errno.EIO, "broken disk")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with pytest.raises(OSError, match="broken disk"):
        publish_engine(out)
    assert content(out) == "old"
    assert beside(out) == ["mine"]


def test_what_a_killed_build_left_is_cleared(out: Path) -> None:
    publish_engine(out, "old")
    (out.parent / f".mine.dead{BUILDING}").mkdir()
    with locked(out.parent):
        (out.parent / f".mine.live{BUILDING}").mkdir()
        with locked(out.parent / f".mine.live{BUILDING}"):
            publish_engine(out)
    assert beside(out) == [f".mine.live{BUILDING}", "mine"]


def test_an_engine_that_a_killed_build_had_moved_aside_comes_back(out: Path) -> None:
    publish_engine(out, "old")
    out.rename(out.parent / f".mine.dead{BUILDING}.old")
    with pytest.raises(RuntimeError), assembling(out, SIZES):
        raise RuntimeError
    assert content(out) == "old"


def test_a_full_disk_says_what_was_needed(out: Path) -> None:
    with pytest.raises(BuildError) as caught, assembling(out, SIZES):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.exit_code == 5
    assert "6 MB were needed" in caught.value.why
    assert "nothing was published" in caught.value.why
    assert beside(out) == []


def test_missing_space_is_found_before_the_work(out: Path) -> None:
    require_space(out, 1)
    with pytest.raises(BuildError, match="not enough disk space"):
        require_space(out, 1 << 60)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_the_environments_fault(out: Path, number: int) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot write to"), writing(out, 1):
        raise OSError(number, os.strerror(number))


def test_other_faults_are_not_dressed_up(out: Path) -> None:
    with pytest.raises(OSError, match="broken"), writing(out, 1):
        raise OSError(errno.EIO, "broken")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    def make(folder: Path) -> None:
        (folder / "sub").mkdir()
        (folder / "sub" / "model.onnx").write_bytes(b"x" * 99)

    return StageStore(tmp_path / "cache").run("attach", [], make)


@pytest.mark.parametrize("take", [False, True])
def test_the_files_of_a_stage_are_the_engines_own(out: Path, stage: Stage, take: bool) -> None:
    with assembling(out, SIZES) as assembly:
        (assembly.take_stage if take else assembly.place_stage)(stage, "target", Quiet())
    placed = out / "target" / "sub" / "model.onnx"
    assert assembly.files == {"target/sub/model.onnx": FileEntry.of(placed)}
    assert placed.stat().st_nlink == 1
    assert (stage.path / "sub" / "model.onnx").exists() is not take


def test_a_stage_is_taken_to_another_disk(out: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "model.onnx":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with assembling(out, SIZES) as assembly:
        assembly.take_stage(stage, "target", Quiet())
    assert (out / "target" / "sub" / "model.onnx").read_bytes() == b"x" * 99
    assert not stage.path.exists()


@pytest.mark.parametrize("shares", [False, True])
def test_room_for_a_copy_is_asked_for_where_it_takes_any(
    out: Path, stage: Stage, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "shares_blocks", lambda *_: shares)
    monkeypatch.setattr(atomic_files, "free_bytes", lambda _: 50)
    refused = nullcontext() if shares else pytest.raises(BuildError, match="not enough disk space")
    with refused, assembling(out, SIZES) as assembly:
        assembly.place_stage(stage, "target", Quiet())


def test_sizes_are_for_people() -> None:
    assert [atomic_files._size(n) for n in (5, 12_300, 4_000_000, 7_500_000_000)] == [
        "5 bytes",
        "12 kB",
        "4 MB",
        "7.5 GB",
    ]
