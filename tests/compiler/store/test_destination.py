"""The path of ``--out``: what may be replaced, and paths that are refused before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.store import destination
from peagle.compiler.store.destination import is_record, require_disjoint, require_publishable
from peagle.engines.folder.manifest import FILE_NAME
from peagle.plugins.errors import EnvironmentProblem, PeagleError, UsageError


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / FILE_NAME).write_text("{}")
    return folder


def test_engine_empty_folder_or_new_path_is_accepted(tmp_path: Path, engine: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (engine, tmp_path / "empty", tmp_path / "not" / "there"):
        assert require_publishable(out) == out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "engine"]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [('{"key": 1}', True), ("{}", False), ('["key"]', False), ('"key"', False), ("[" * 10**5, False)],
)
def test_record_is_known_by_its_key(tmp_path: Path, text: str, *, is_one: bool) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    assert is_record(path, "key") is is_one


def test_device_is_no_record() -> None:
    assert not is_record(Path("/dev/zero"), "key")


@pytest.mark.parametrize("below", ["new", "target/deeper/new"])
def test_no_output_is_put_into_an_engine(tmp_path: Path, engine: Path, below: str) -> None:
    (tmp_path / "link").symlink_to(engine)
    for folder in (engine, tmp_path / "link"):
        with pytest.raises(UsageError, match=f"--out {folder / below} is inside the engine {engine}"):
            require_publishable(folder / below)
    assert [path.name for path in engine.iterdir()] == [FILE_NAME]


def test_link_resolves_to_its_folder(tmp_path: Path, engine: Path) -> None:
    (tmp_path / "link").symlink_to(engine)
    (tmp_path / "second").symlink_to("link")
    (tmp_path / "above").symlink_to(tmp_path, target_is_directory=True)
    assert require_publishable(tmp_path / "link") == require_publishable(tmp_path / "second") == engine
    assert require_publishable(tmp_path / "above" / "new") == tmp_path / "new"


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(UsageError, match=f"is a link to {target}, which does not exist"):
        require_publishable(tmp_path / "link")


def test_only_own_output_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "link").symlink_to("thesis.tex")
    for out in (tmp_path, tmp_path / "thesis.tex", tmp_path / "link", Path("/dev/null")):
        with pytest.raises(UsageError, match="not created by peagle-compile") as caught:
            require_publishable(out)
        assert f"remove the {'folder' if out.is_dir() else 'file'} yourself" in caught.value.fix


@pytest.mark.parametrize("below", ["", "target"])
def test_the_folder_that_one_is_in_is_not_pulled_away(
    engine: Path, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine / "target").mkdir()
    monkeypatch.chdir(engine / below)
    for out in (engine, Path(os.path.relpath(engine))):
        with pytest.raises(UsageError, match="is the current folder") as caught:
            require_publishable(out)
        assert "use a subfolder" in caught.value.fix


def test_mount_point_cannot_be_replaced(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda _: True)
    with pytest.raises(UsageError, match="is a mount point"):
        require_publishable(engine)


def test_an_engine_with_another_inside_is_not_replaced(engine: Path) -> None:
    inner = engine / "models" / "inner"
    inner.mkdir(parents=True)
    require_publishable(engine)
    (inner / FILE_NAME).touch()
    with pytest.raises(UsageError, match=f"contains another engine or checkpoint: {inner}"):
        require_publishable(engine)
    require_publishable(inner)


@pytest.mark.parametrize("below", ["", "target"])
def test_a_write_protected_engine_is_not_replaced(engine: Path, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (engine / "target").mkdir()
    protected = str(engine / below)
    monkeypatch.setattr("os.access", lambda path, _: str(path) != protected)  # root may write to any folder
    with pytest.raises(UsageError, match="is write-protected"):
        require_publishable(engine)


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "not utf-8 \udcff", "nul\0"])
def test_a_name_that_no_report_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be displayed") as caught:
        require_publishable(tmp_path / name)
    assert str(caught.value).isprintable() or "\n  why" in str(caught.value)
    str(caught.value).encode()


def test_a_name_that_only_the_locale_cannot_decode_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the encoding of the locale is not UTF-8") as caught:
        require_publishable(tmp_path / "engine-é".encode().decode("ascii", "surrogateescape"))
    assert "PYTHONUTF8=1" in caught.value.fix


@pytest.mark.parametrize("out", ["x" * 250, "x" * 300, f"{'x' * 300}/engine", "x/" * 3000])
def test_too_long_name_is_rejected_before_the_work(tmp_path: Path, out: str) -> None:
    with pytest.raises(UsageError, match="is not a valid file name") as caught:
        require_publishable(tmp_path / out)
    assert "too long" in caught.value.why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["/dev/null/engine", "/proc/engine", "/proc/not/there", "/proc/self/fd/engine"])
def test_unwritable_parent_is_rejected_before_the_work(out: str) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot write to"):
        require_publishable(Path(out))


def test_a_folder_that_was_removed_around_us_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(EnvironmentProblem, match="cannot write to"):
        require_publishable(Path("engine"))


def test_folder_used_as_input_is_not_replaced(engine: Path) -> None:
    (engine / "target").mkdir()
    (engine.parent / "link").symlink_to(engine)
    for out, read in ((engine, engine), (engine, engine / "target"), (engine.parent / "link", engine)):
        with pytest.raises(UsageError, match="is an input folder"):
            require_disjoint(out, "demo", None, str(read / ".." / read.name))
    require_disjoint(engine, "demo", None, "x" * 5000, str(engine.parent))


def test_folder_of_an_input_file_is_not_replaced(engine: Path) -> None:
    """A GGUF file in the engine that was built from it, for example."""
    file = engine / "files" / "model.gguf"
    file.parent.mkdir()
    file.touch()
    (engine.parent / "link").symlink_to(engine)
    for out, read in ((engine, str(file)), (engine.parent / "link", file), (engine, engine / "files/../files" / file)):
        with pytest.raises(UsageError, match="contains the input file") as caught:
            require_disjoint(out, None, read)
        assert "move the file" in caught.value.fix
    require_disjoint(engine.parent / "other", file)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40))
def test_any_name_is_accepted_or_rejected(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(destination, "_require_writable", lambda _: None)
        try:
            require_publishable(Path("/proc/nowhere") / name.lstrip("/"))
        except PeagleError as error:
            str(error).encode()
