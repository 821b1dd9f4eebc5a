"""A hash that follows a writer equals the hash of the finished file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle.compiler.store import following_hash
from peagle.compiler.store.following_hash import FollowingHash
from peagle.engines.folder.records import FileEntry

CONTENT = os.urandom(5_000_001)


@pytest.mark.parametrize("step", [1_000_003, 4_999_999, 6_000_000])
def test_it_is_the_hash_of_the_finished_file(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_hash, "_FLUSH_BYTES", 2_000_000)
    path = tmp_path / "weights"
    with FollowingHash(path) as following, path.open("wb", buffering=0) as file:
        file.truncate(len(CONTENT))
        for at in range(0, len(CONTENT), step):
            os.pwrite(file.fileno(), CONTENT[at : at + step], at)
            following.reach(min(at + step, len(CONTENT)))
    assert following.entry() == FileEntry.of(path)


def test_an_empty_file_has_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    with FollowingHash(path) as following:
        path.touch()
        following.reach(0)
    assert following.entry() == FileEntry.of(path)


def test_interrupted_writer_does_not_wait_for_the_hash(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(CONTENT)
    following = FollowingHash(path)

    def write() -> None:
        with following:
            following.reach(len(CONTENT))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert not following._thread.is_alive()


def test_missing_bytes_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"short")
    with FollowingHash(path) as following:
        following.reach(100)
    with pytest.raises(OSError, match="ends after 5 bytes"):
        following.entry()
