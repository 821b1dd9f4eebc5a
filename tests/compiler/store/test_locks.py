"""Locks: exclusive, and bound to a path rather than to the file that was there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from peagle.compiler.store.locks import SharedLock, locked, locked_file, locked_for_reading, locked_if_free
from peagle.plugins.errors import EnvironmentProblem
from tests.attacks.world import guarded
from tests.recorded_steps import RecordedSteps

SECONDS = 30.0


def is_free(path: Path) -> bool:
    with locked_if_free(path) as free:
        return free


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    assert is_free(tmp_path)
    with locked(tmp_path):
        assert not is_free(tmp_path)
    with locked_if_free(tmp_path) as free:
        assert free
        assert not is_free(tmp_path)
    assert is_free(tmp_path)


def test_readers_share_a_lock_that_excludes_changes(tmp_path: Path) -> None:
    with locked_for_reading(tmp_path), locked_for_reading(tmp_path):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)


@pytest.mark.parametrize("lock", [locked, locked_for_reading])
def test_only_a_wait_for_a_lock_is_a_step(tmp_path: Path, lock: Callable[..., AbstractContextManager[None]]) -> None:
    others = ExitStack()
    progress = RecordedSteps(others.close)
    with lock(tmp_path, progress):
        assert not progress.steps
    others.enter_context(locked(tmp_path))
    with lock(tmp_path, progress):
        assert progress.steps == [f"wait for another command that uses {tmp_path}"]


def test_missing_or_linked_lock_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert not is_free(tmp_path / "nothing")
    assert not is_free(tmp_path / "link")
    with pytest.raises(FileNotFoundError), locked(tmp_path / "nothing"):
        pass


def test_shared_lock_is_free_after_all_holders_release(tmp_path: Path) -> None:
    first, second = SharedLock(tmp_path), SharedLock(tmp_path)
    del first
    assert not is_free(tmp_path)
    del second
    assert is_free(tmp_path)
    with pytest.raises(FileNotFoundError):
        SharedLock(tmp_path / "nothing")


def test_folder_that_was_replaced_cannot_be_claimed(tmp_path: Path) -> None:
    folder = tmp_path / "stage"
    folder.mkdir()
    lock = SharedLock(folder)
    assert lock.claim()
    lock.share()
    folder.rename(tmp_path / "old")
    assert not lock.claim()
    folder.mkdir()
    assert not lock.claim()
    assert is_free(folder)
    (tmp_path / "old").replace(folder)
    assert lock.claim()


def test_who_waited_for_a_lock_file_that_was_removed_has_the_new_one(tmp_path: Path) -> None:
    path, got = tmp_path / "key.lock", threading.Event()

    def wait() -> None:
        with locked_file(path):
            got.set()
            assert not is_free(path)

    with locked_file(path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not got.wait(0.1)
        path.unlink()
    waiting.join(60)
    assert got.is_set()
    assert is_free(path)


def test_pipe_instead_of_a_lock_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.lock")
    with guarded(SECONDS), locked_file(tmp_path / "x.lock"):
        assert not is_free(tmp_path / "x.lock")
    with guarded(SECONDS):
        assert is_free(tmp_path / "x.lock")


def test_files_are_locked_where_that_takes_a_descriptor_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS locks files so, while locks of its folders stay on this machine."""
    flock = fcntl.flock

    def flock_of_nfs(descriptor: int, how: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if is_file and how & fcntl.LOCK_EX and mode == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    path = tmp_path / "key.lock"
    with locked_file(path):
        assert not is_free(path)
    assert is_free(path)
    with locked(tmp_path):
        assert not is_free(tmp_path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_files_that_cannot_be_written_are_locked_too(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They belong to another user, or their disk is read-only."""
    lock, opened = tmp_path / "a.lock", os.open
    lock.touch()

    def refusing(path: str, flags: int, *more: int) -> int:
        if flags & os.O_RDWR and Path(path) == lock:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", refusing)
    with locked(lock):
        assert not is_free(lock)


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_reported(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for lock in (locked_file, locked, locked_if_free):  # the first creates the file
        with pytest.raises(EnvironmentProblem, match="cannot lock") as caught, lock(tmp_path / "key.lock"):
            pass
        assert "key.lock" in caught.value.what
        assert "PEAGLE_CACHE" in caught.value.fix
    with pytest.raises(EnvironmentProblem, match="cannot lock"):
        SharedLock(tmp_path)


def test_a_folder_is_read_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command changes it there; errors of its reader are not taken for missing locks."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(EnvironmentProblem, match="cannot lock"), locked_for_reading(tmp_path), locked(tmp_path):
        pass
    read = False
    with locked_for_reading(tmp_path):
        read = True
    assert read
