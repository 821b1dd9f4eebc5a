"""Copies of files have the same bytes, for any copy method that the disk supports."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.store import copy_file as module
from peagle.compiler.store.copy_file import copy_file, nearest, shares_blocks

PIECE = 1000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(2 * PIECE + 345))
    return path


def refuse(*_: Any) -> Any:
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


def clone(target: int, _: int, source: int) -> None:
    """Imitate a file system that shares blocks."""
    os.pwrite(target, os.pread(source, 1 << 20, 0), 0)


@pytest.mark.parametrize("way", ["blocks", "kernel", "here"])
def test_copy_is_exact_and_reports_progress(source: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", PIECE)
    monkeypatch.setattr(fcntl, "ioctl", clone if way == "blocks" else refuse)
    if way == "here":
        monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    told: list[int] = []
    copy = source.with_name("copy")
    copy_file(source, copy, told.append)
    assert copy.read_bytes() == source.read_bytes()
    assert not copy.samefile(source)
    assert told == ([2 * PIECE + 345] if way == "blocks" else [PIECE, PIECE, 345])


def test_the_copy_of_an_empty_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    copy_file(tmp_path / "empty", tmp_path / "copy", lambda _: None)
    assert (tmp_path / "copy").read_bytes() == b""


def test_a_partial_write_is_continued(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(fcntl, "ioctl", refuse)
    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:100]))
    copy_file(source, source.with_name("copy"), lambda _: None)
    assert source.with_name("copy").read_bytes() == source.read_bytes()


def test_reflink_support_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "ioctl", clone)
    assert shares_blocks(tmp_path, tmp_path / "not" / "there")
    monkeypatch.setattr(fcntl, "ioctl", refuse)
    assert not shares_blocks(tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nearest_existing_folder_is_found(tmp_path: Path) -> None:
    assert nearest(tmp_path) == nearest(tmp_path / "a" / "b") == tmp_path
    assert nearest(Path("nowhere")) == Path()
