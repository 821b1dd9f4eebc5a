"""The hash of a file that is written from front to back, computed while it is written."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from types import TracebackType

from ...engines.folder.records import FileEntry

_PIECE = 1 << 20
_FLUSH_BYTES = 64 << 20  # bytes after which the disk is waited for, so that it writes all the time and not at the end


class FollowingHash:
    """A thread that reads what the writer of ``path`` has finished, while it is in memory, and flushes it to disk.

    ``with FollowingHash(path) as following: ... following.reach(end)``, then ``following.entry()``.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._digest = path, hashlib.sha256()
        self._end = 0
        self._is_ended = False
        self._error: OSError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)

    def __enter__(self) -> FollowingHash:
        self._thread.start()
        return self

    def reach(self, end: int) -> None:
        """Tell that all bytes before ``end`` are final."""
        with self._changed:
            self._end = max(self._end, end)
            self._changed.notify()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._is_ended = True
            if kind:
                self._end = 0  # nobody needs the hash
            self._changed.notify()
        self._thread.join()

    def entry(self) -> FileEntry:
        """Return size and hash of the bytes before the last end, after the block. Raises ``OSError`` of the disk."""
        if self._error:
            raise self._error
        return FileEntry(self._end, self._digest.hexdigest())

    def _run(self) -> None:
        done = flushed = 0
        room = memoryview(bytearray(_PIECE))
        try:
            while (end := self._next_end(done)) > done:
                with self._path.open("rb", buffering=0) as file:
                    while done < min(end, self._end):
                        count = os.preadv(file.fileno(), [room[: end - done]], done)
                        if not count:
                            raise OSError(f"{self._path} ends after {done} bytes")
                        self._digest.update(room[:count])
                        done += count
                        if done - flushed >= _FLUSH_BYTES:
                            os.fdatasync(file.fileno())
                            flushed = done
        except OSError as error:
            self._error = error

    def _next_end(self, done: int) -> int:
        """Wait for more bytes; return their end, or ``done`` if there are none to come."""
        with self._changed:
            self._changed.wait_for(lambda: self._end > done or self._is_ended)
            return max(self._end, done)
