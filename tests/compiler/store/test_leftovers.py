"""Leftovers of killed builds are removed, engines moved aside are restored, and running builds are not touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle.compiler.store.leftovers import clear_leftovers, remove, retired_path, temporary_path
from peagle.compiler.store.locks import locked


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def unfinished(final: Path) -> Path:
    folder = temporary_path(final)
    (folder / "target").mkdir(parents=True)
    return folder


def test_unfinished_folders_of_any_name_go(tmp_path: Path) -> None:
    for name in ("mine", "another name", "a.b", ".hidden", "[x]*"):
        unfinished(tmp_path / name)
    clear_leftovers(tmp_path)
    assert names(tmp_path) == []


def test_output_of_a_running_build_is_kept(tmp_path: Path) -> None:
    folder = unfinished(tmp_path / "mine")
    with locked(folder):
        clear_leftovers(tmp_path)
    assert names(tmp_path) == [folder.name]


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_moved_folder_is_restored_unless_replaced(tmp_path: Path, is_link: bool, is_replaced: bool) -> None:
    folder = tmp_path / "engines"
    folder.mkdir()
    old = retired_path(temporary_path(folder / "mine"))
    if is_link:
        (tmp_path / "real").mkdir()
        old.symlink_to(tmp_path / "real")
    else:
        old.mkdir()
    if is_replaced:
        (folder / "mine").mkdir()
    clear_leftovers(folder)
    assert names(folder) == ["mine"]
    assert (folder / "mine").is_symlink() is (is_link and not is_replaced)
    assert (tmp_path / "real").is_dir() is is_link


def test_old_folder_is_kept_while_being_replaced(tmp_path: Path) -> None:
    ready = unfinished(tmp_path / "mine")
    retired_path(ready).mkdir()
    with locked(ready):
        clear_leftovers(tmp_path)
    assert names(tmp_path) == sorted([ready.name, retired_path(ready).name])


def test_foreign_files_are_kept(tmp_path: Path) -> None:
    theirs = [
        ".mine.building",
        "mine.0123abcd.building",
        ".mine.0123abcd.building.orig",
        "x.old",
        ".mine.xyzzy123.building",
    ]
    for name in theirs:
        (tmp_path / name).mkdir()
    (tmp_path / ".mine.0123abcd.building").touch()
    clear_leftovers(tmp_path)
    assert names(tmp_path) == sorted([*theirs, ".mine.0123abcd.building"])


def test_any_file_type_at_a_leftover_path_is_removed(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "link", "file", "pipe", "nothing"):
        remove(tmp_path / name)
    assert names(tmp_path) == ["kept"]
