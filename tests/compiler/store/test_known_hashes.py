"""A large file is hashed once, and again after any change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from peagle.compiler.store import known_hashes
from peagle.compiler.store.known_hashes import FOLDER, entry_of
from peagle.engines.folder.records import FileEntry
from tests.attacks.world import guarded

CONTENT = b"weights" * 9
HASH = sha256(CONTENT).hexdigest()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read whole; sizes and waits are those of a test."""
    every: list[Path] = []
    of = FileEntry.of

    def reading(path: Path, advance: Callable[[int], object] = lambda _: None) -> FileEntry:
        every.append(path)
        return of(path, advance)

    monkeypatch.setattr(FileEntry, "of", reading)
    monkeypatch.setattr(known_hashes, "LARGE", 8)
    monkeypatch.setattr(known_hashes, "_SETTLED_NS", -1)
    return every


def written(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_file_is_hashed_once_under_any_name(tmp_path: Path, reads: list[Path]) -> None:
    file, told = written(tmp_path / "a.safetensors"), list[int]()
    assert entry_of(file, tmp_path / "kept", told.append) == FileEntry(len(CONTENT), HASH)
    other = tmp_path / "link"
    other.symlink_to(file)
    assert entry_of(other, tmp_path / "kept", told.append) == FileEntry(len(CONTENT), HASH)
    assert (reads, told) == ([file], [len(CONTENT)] * 2)


def rewrite(file: Path) -> None:
    before = file.stat()
    file.write_bytes(CONTENT[::-1])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(file: Path) -> None:
    before = file.stat()
    os.utime(written(file.with_name("new"), CONTENT[::-1]), ns=(before.st_atime_ns, before.st_mtime_ns))
    file.with_name("new").replace(file)


@pytest.mark.parametrize("change", [rewrite, replace], ids=["in place", "by another"])
def test_file_with_same_size_and_time_is_hashed_again(
    tmp_path: Path, reads: list[Path], change: Callable[[Path], None]
) -> None:
    file = written(tmp_path / "a.safetensors")
    entry_of(file, tmp_path / "kept")
    time.sleep(0.05)  # longer than the clock resolution of the file system
    change(file)
    assert entry_of(file, tmp_path / "kept").sha256 == sha256(CONTENT[::-1]).hexdigest()
    assert len(reads) == 2


def test_a_file_that_changed_just_now_is_not_known_yet(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_hashes, "_SETTLED_NS", 3_600_000_000_000)
    file = written(tmp_path / "a.safetensors")
    for _ in range(2):
        assert entry_of(file, tmp_path / "kept").sha256 == HASH
    assert (len(reads), (tmp_path / "kept").exists()) == (2, False)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"3", b"[1, 2, 3, 4]", b"[" * 9999, b"\xff", None])
def test_damaged_hash_record_is_ignored(tmp_path: Path, reads: list[Path], content: bytes | None) -> None:
    file = written(tmp_path / "a.safetensors")
    entry_of(file, tmp_path / "kept")
    (kept,) = (tmp_path / "kept" / FOLDER).iterdir()
    if content is None:  # well-formed, but not a hash
        content = kept.read_bytes().replace(HASH.encode(), b"x" * 64)
    kept.write_bytes(content)
    assert entry_of(file, tmp_path / "kept").sha256 == HASH
    assert len(reads) == 2


def test_small_files_and_read_only_places_keep_no_record(tmp_path: Path, reads: list[Path]) -> None:
    small, large, no_folder = written(tmp_path / "s", b"1234567"), written(tmp_path / "l"), written(tmp_path / "f")
    for root in (tmp_path / "kept", None):
        assert entry_of(small, root).sha256 == sha256(b"1234567").hexdigest()
    for root in (no_folder, None):
        assert entry_of(large, root).sha256 == HASH
    assert (len(reads), (tmp_path / "kept").exists()) == (4, False)


def test_a_blob_of_the_hubs_cache_is_called_by_its_hash(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file outside the cache is read, whatever its name, and so is one named by a Git hash."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    entries = []
    for place, name in (("hub", "a" * 64), ("elsewhere", "b" * 64), ("hub", "c" * 40)):
        blob = written(tmp_path / place / "models--o--n" / "blobs" / name)
        link = tmp_path / place / "models--o--n" / "snapshots" / name[0] / "model.safetensors"
        link.parent.mkdir(parents=True)
        link.symlink_to(blob)
        entries.append(entry_of(link, None))
    assert [entry.sha256 for entry in entries] == ["a" * 64, HASH, HASH]
    assert [entry.size for entry in entries] == [len(CONTENT)] * 3
    assert len(reads) == 2


def test_pipe_instead_of_a_hash_record_does_not_block(tmp_path: Path, reads: list[Path]) -> None:
    file = written(tmp_path / "a.safetensors")
    entry_of(file, tmp_path / "kept")
    (kept,) = (tmp_path / "kept" / FOLDER).iterdir()
    kept.unlink()
    os.mkfifo(kept)
    with guarded(30):
        assert entry_of(file, tmp_path / "kept").sha256 == HASH
    assert len(reads) == 2
