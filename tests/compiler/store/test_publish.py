"""Publishing: an engine folder appears at once, replaces only engines, and a failure changes nothing."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.console.exit_cleanup import stops_are_deferred
from peagle.compiler.console.progress import Quiet
from peagle.compiler.store import atomic_files, publish, stages
from peagle.compiler.store.atomic_files import require_space, writing
from peagle.compiler.store.leftovers import clear_leftovers
from peagle.compiler.store.locks import locked
from peagle.compiler.store.publish import assembling
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


def test_bytes_of_a_path_that_are_not_text_are_escaped_in_reports(out: Path) -> None:
    publish_engine(out, "built from /models/\udce9")
    assert content(out) == r"built from /models/\udce9"


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


def test_engine_is_replaced_after_a_change_of_it_is_complete(out: Path) -> None:
    publish_engine(out, "old")
    with ThreadPoolExecutor(1) as threads:
        with locked(out):
            published = threads.submit(publish_engine, out, "new")
            with pytest.raises(TimeoutError):
                published.result(0.2)
            assert content(out) == "old"
        published.result(30)
    assert content(out) == "new"


def test_a_damaged_engine_is_replaced(out: Path) -> None:
    publish_engine(out, "old")
    (out / FILE_NAME).write_text("{")
    publish_engine(out)
    assert content(out) == "new"


def test_empty_folder_is_accepted(out: Path) -> None:
    out.mkdir(parents=True)
    publish_engine(out)
    assert content(out) == "new"


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), SystemExit(143)])
def test_interruption_changes_nothing(out: Path, before: str | None, error: BaseException) -> None:
    if before:
        publish_engine(out, before)
    with pytest.raises(type(error)):
        publish_engine(out, "new", error)
    assert beside(out) == (["mine"] if before else [])
    if before:
        assert content(out) == before


@pytest.mark.parametrize("step", ["flush_tree", "move_into_place"])
@pytest.mark.parametrize("before", [None, "old"])
def test_late_interruption_changes_nothing(
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
        if self.name.endswith(".building") and Path(target) == out:
            raise OSError(errno.EBADF, "broken disk")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with pytest.raises(OSError, match="broken disk"):
        publish_engine(out)
    assert content(out) == "old"
    assert beside(out) == ["mine"]


def test_full_disk_error_states_required_space(out: Path) -> None:
    with pytest.raises(BuildError) as caught, assembling(out, SIZES):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.exit_code == 5
    assert "6 MB are needed" in caught.value.why
    assert "nothing was published" in caught.value.why
    assert beside(out) == []


def test_missing_space_is_found_before_the_work(out: Path) -> None:
    require_space(out, 1)
    with pytest.raises(BuildError, match="not enough disk space"):
        require_space(out, 1 << 60)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOENT, errno.EBUSY, errno.EIO, errno.EFBIG])
def test_a_folder_that_cannot_be_written_is_the_environments_fault(out: Path, number: int) -> None:
    with pytest.raises(EnvironmentProblem, match=f"cannot write to {out}"), writing(out, 1):
        raise OSError(number, os.strerror(number), str(out / "file"))


def test_a_file_elsewhere_was_read(out: Path) -> None:
    with (
        pytest.raises(EnvironmentProblem, match="cannot read /weights\n  why: Permission denied") as caught,
        writing(out, 1),
    ):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), "/weights")
    assert "is readable" in caught.value.fix


def test_the_reason_is_that_of_the_error_if_it_has_one(out: Path) -> None:
    with pytest.raises(EnvironmentProblem) as caught, writing(out, 1):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/nope']")
    assert caught.value.why == "No usable temporary directory found in ['/nope']"


def test_a_name_that_the_disk_does_not_take_is_the_users(out: Path) -> None:
    with pytest.raises(UsageError, match="is not a valid file name"), writing(out, 1):
        (out.parent.parent / ("x" * 300)).mkdir()


def test_other_faults_are_not_dressed_up(out: Path) -> None:
    with pytest.raises(OSError, match="broken"), writing(out, 1):
        raise OSError(errno.EBADF, "broken")


def test_leftovers_of_a_killed_build_are_removed(out: Path) -> None:
    publish_engine(out, "old")
    (out.parent / ".another name.0123abcd.building").mkdir()
    publish_engine(out)
    assert beside(out) == ["mine"]


def test_engine_moved_aside_by_a_killed_build_is_restored(out: Path) -> None:
    publish_engine(out, "old")
    out.rename(out.parent / ".mine.0123abcd.building.old")
    with pytest.raises(RuntimeError), assembling(out, SIZES):
        raise RuntimeError
    assert content(out) == "old"


@pytest.mark.parametrize("before", [None, "old"])
def test_linked_folder_is_followed(out: Path, before: str | None) -> None:
    real = out.parent.parent / "big disk" / "real"
    real.mkdir(parents=True)
    if before:
        publish_engine(real, before)
    out.parent.mkdir()
    out.symlink_to(real)
    publish_engine(out)
    assert out.is_symlink()
    assert content(real) == "new"
    assert (beside(out), beside(real)) == (["mine"], ["real"])


def test_folder_removed_by_a_concurrent_build_is_recreated(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir, made = Path.mkdir, list[Path]()

    def swept_at_once(self: Path, *args: Any, **options: Any) -> None:
        mkdir(self, *args, **options)
        if self.name.endswith(".building") and len(made) < 3:  # the first is only tested for permission
            made.append(self)
            clear_leftovers(self.parent) if len(made) > 1 else None

    monkeypatch.setattr(Path, "mkdir", swept_at_once)
    publish_engine(out)
    assert len(made) == 3
    assert content(out) == "new"


def write_model(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "model.onnx").write_bytes(b"x" * 99)


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path / "cache")


@pytest.fixture
def stage(store: StageStore) -> Stage:
    return store.run("attach", [], write_model)


@pytest.mark.usefixtures("without_sharing")
@pytest.mark.parametrize("is_adopted", [False, True])
def test_the_files_of_a_stage_are_the_engines_own(out: Path, stage: Stage, is_adopted: bool) -> None:
    with assembling(out, SIZES) as assembly:
        (assembly.adopt_stage if is_adopted else assembly.place_stage)(stage, "target", Quiet())
    placed = out / "target" / "sub" / "model.onnx"
    assert assembly.files == {"target/sub/model.onnx": FileEntry.of(placed)}
    assert placed.stat().st_nlink == 1
    assert (stage.path / "sub" / "model.onnx").exists() is not is_adopted


def adopt(
    out: Path, stage: Stage, error: BaseException | None = None, damage: Callable[[Path], None] | None = None
) -> None:
    with assembling(out, SIZES) as assembly:
        assembly.adopt_stage(stage, "target", Quiet())
        if damage:
            damage(assembly.folder / "target" / "sub" / "model.onnx")
        assembly.check(Quiet())
        if error:
            raise error


def remake(store: StageStore) -> Stage:
    return store.run("attach", [], write_model)


@pytest.fixture
def without_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk whose copies take space, as ext4."""
    monkeypatch.setattr(publish, "shares_blocks", lambda *_: False)


@pytest.mark.usefixtures("without_sharing")
def test_adopted_files_have_one_copy_and_are_made_again_when_needed(out: Path, stage: Stage, store: StageStore) -> None:
    inode = (stage.path / "sub" / "model.onnx").stat().st_ino
    adopt(out, stage)
    placed = out / "target" / "sub" / "model.onnx"
    assert (placed.stat().st_ino, placed.stat().st_nlink) == (inode, 1)
    assert [*stage.path.parent.iterdir()] == []  # neither the stage nor its lock
    again = remake(store)
    assert (again.reused, again.files) == (False, stage.files)
    placed.write_bytes(b"edited")
    assert remake(store).reused


@pytest.mark.usefixtures("without_sharing")
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_interrupted_adoption_leaves_the_stage(
    out: Path, stage: Stage, store: StageStore, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        adopt(out, stage, error)
    assert beside(out) == []
    assert (stage.path / "sub" / "model.onnx").stat().st_nlink == 1
    assert remake(store).reused


@pytest.mark.usefixtures("without_sharing")
@pytest.mark.parametrize("error", [OSError(errno.EBADF, "broken disk"), KeyboardInterrupt()])
def test_adoption_that_cannot_be_published_leaves_the_stage(
    out: Path, stage: Stage, store: StageStore, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(publish, "move_into_place", fail)
    with pytest.raises(type(error)):
        adopt(out, stage)
    assert beside(out) == []
    assert remake(store).reused


@pytest.mark.usefixtures("without_sharing")
def test_stops_wait_while_a_stage_leaves_but_not_while_files_are_copied(
    out: Path, stage: Stage, store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred = list[tuple[str, bool]]()

    def record(name: str) -> None:
        original = getattr(publish, name)

        def recorded(*arguments: Any) -> Any:
            deferred.append((name, stops_are_deferred()))
            return original(*arguments)

        monkeypatch.setattr(publish, name, recorded)

    for name in ("leaving_store", "move_into_place", "copy_file"):
        record(name)
    adopt(out, stage)
    assert deferred == [("leaving_store", True), ("move_into_place", True)]
    deferred.clear()
    first, second = remake(store), remake(store)
    adopt(out.with_name("other"), first)
    assert deferred == [("copy_file", False), ("move_into_place", True)]
    assert second.path.exists()


@pytest.mark.usefixtures("without_sharing")
def test_process_killed_while_a_stage_leaves_lets_the_next_build_clear_it(
    out: Path, stage: Stage, store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(stages, "remove", lambda _: None)
        patched.setattr(Path, "unlink", lambda *_, **__: None)
        with stages.exclusively(stage) as is_owner, stages.leaving_store(stage):
            assert is_owner
    assert not stage.path.exists()
    assert not remake(store).reused
    assert [path.name for path in stage.path.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.usefixtures("without_sharing")
def test_adopted_stage_stays_in_a_store_that_cannot_be_written(
    out: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: path != stage.path.parent)
    adopt(out, stage)
    assert (out / "target" / "sub" / "model.onnx").stat().st_nlink == 1
    assert (stage.path / "sub" / "model.onnx").exists()


@pytest.mark.usefixtures("without_sharing")
@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_adopted_stage_is_copied_where_links_are_impossible(
    out: Path, stage: Stage, store: StageStore, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(BuildError, match="is damaged"):
        adopt(out, stage, damage=change)
    assert remake(store).reused  # it stays until the copies are checked
    adopt(out, stage)
    assert (out / "target" / "sub" / "model.onnx").read_bytes() == b"x" * 99
    assert not stage.path.exists()
    assert not remake(store).reused


@pytest.mark.usefixtures("without_sharing")
def test_stage_that_another_build_uses_is_copied(out: Path, stage: Stage, store: StageStore) -> None:
    other = remake(store)
    adopt(out, stage)
    placed = out / "target" / "sub" / "model.onnx"
    assert placed.stat().st_nlink == 1
    assert (other.path / "sub" / "model.onnx").stat().st_nlink == 1
    assert beside(placed) == ["model.onnx"]
    assert remake(store).reused


def test_stage_stays_where_copies_take_no_space(
    out: Path, stage: Stage, store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "shares_blocks", lambda *_: True)
    adopt(out, stage)
    assert (out / "target" / "sub" / "model.onnx").stat().st_nlink == 1
    assert remake(store).reused


@pytest.mark.usefixtures("without_sharing")
def test_dropped_stage_is_not_adopted(out: Path, stage: Stage, store: StageStore) -> None:
    with assembling(out, SIZES) as assembly:
        assembly.adopt_stage(stage, "target", Quiet())
        assembly.drop_stage(stage, "target")
    assert remake(store).reused


@pytest.mark.parametrize("shares", [False, True])
def test_space_is_checked_only_when_copying(
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


def test_a_chat_template_becomes_a_file_however_it_is_stored(out: Path, tmp_path: Path) -> None:
    several = [{"name": "default", "template": "a é"}, {"name": "tool_use", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": several}))
    with assembling(out, SIZES) as assembly:
        assembly.place_tokenizer(tmp_path)
        (assembly.folder / "target").mkdir()
        (assembly.folder / "drafter").mkdir()
        for part in ("target", "drafter"):
            assembly.place_text(f"{part}/model.onnx", "x")
        assembly.write_manifest(manifest_of({}))
    check_files(Manifest.read(out).files, out)
    assert (out / "chat_template.jinja").read_text() == "a é"
    assert (out / "additional_chat_templates" / "tool_use.jinja").read_text() == "b"
    assert json.loads((out / "tokenizer_config.json").read_text()) == {"bos_token": "<s>"}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def change(path: Path) -> None:
    path.write_bytes(b"X" + path.read_bytes()[1:])


def put_together(out: Path, name: str, damage: Callable[[Path], None]) -> None:
    """Publish an engine with copied and adopted files, one of which is damaged on the way."""
    store = StageStore(out.parent / "cache")
    moved = store.run("attach", ["x"], lambda folder: (folder / "moved.data").write_text("moved"))
    with assembling(out, SIZES) as assembly:
        for part in ("target", "drafter"):
            assembly.place_text(f"{part}/model.onnx", "new")
        assembly.adopt_stage(moved, "target", Quiet())
        manifest = assembly.write_manifest(manifest_of({}))
        damage(assembly.folder / name)
        assembly.check_engine(manifest, Quiet())


@pytest.mark.usefixtures("without_sharing")
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, damage) for name in ("target/model.onnx", FILE_NAME) for damage in (Path.unlink, cut, change)),
        ("target/moved.data", Path.unlink),  # the file is here, so its size is compared and not its hash
        ("target/moved.data", cut),
    ],
)
def test_engine_that_differs_from_its_source_is_not_published(
    out: Path, name: str, damage: Callable[[Path], None]
) -> None:
    with pytest.raises(BuildError, match="is damaged and was not published") as caught:
        put_together(out, name, damage)
    assert "--force" in caught.value.fix
    assert not out.exists()


def test_an_engine_of_copied_and_moved_files_is_published(out: Path) -> None:
    put_together(out, FILE_NAME, lambda _: None)
    assert content(out) == "new"


def test_manifest_with_a_missing_file_is_not_published(out: Path) -> None:
    with pytest.raises(BuildError, match="was not published"):
        put_together(out, FILE_NAME, lambda path: manifest_of({}).write(path.parent))
    assert not out.exists()
