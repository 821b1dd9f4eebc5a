"""The weights of an engine's graphs, in large pages of memory.

A pass reads all weights once. In pages of 4 KiB, which lie anywhere in memory, many of these reads wait for page table
entries as well (docs/decisions/large-pages.md).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from ....plugins.errors import EnvironmentProblem
from ...folder.checks import REBUILD
from ...free_memory import free_memory
from .external_tensors import external_tensors

_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_SHARE = 0.5  # of free memory: larger files are mapped, so that the system can drop their pages
_PIECE = 16 << 20  # bytes that a thread reads at once
_READERS = 4  # threads


class Weights:
    """The files with an engine's weights, each in memory once, whatever the number of graphs that read it.

    A file is copied into large pages if the system has them, and if it takes at most half of the free memory.
    Otherwise it is mapped, in large pages if the file system supports that. It is freed with the last session.
    """

    def __init__(self, large_page: int | None = None) -> None:
        """Use pages of ``large_page`` bytes, or the system's large pages (None); 0: leave all files to ONNX Runtime."""
        self._page = large_page_bytes() if large_page is None else large_page
        self._files: WeakValueDictionary[tuple[int, ...], np.ndarray] = WeakValueDictionary()

    def of(self, graph: Path) -> dict[str, np.ndarray]:
        """Return the weights of an ONNX file by name, as far as they are stored in files of at least one large page.

        Returns nothing for a file that is not an ONNX model; ONNX Runtime says what is wrong with it. Raises
        ``EnvironmentProblem`` for files that cannot be read.
        """
        if not self._page:
            return {}
        try:
            tensors = external_tensors(graph.read_bytes())
            files = {name: self._content(graph.parent / name) for name in {t.file for t in tensors} if _is_plain(name)}
        except ValueError:
            return {}
        except OSError as error:
            raise EnvironmentProblem(f"cannot read the weights of {graph}", why=str(error), fix=REBUILD) from error
        found = {}
        for tensor in tensors:
            file, dtype = files.get(tensor.file), tensor.type.dtype
            if file is None or tensor.offset % dtype.itemsize or not 0 <= tensor.offset <= tensor.end <= len(file):
                continue  # ONNX Runtime reads it, or says what is wrong with it
            found[tensor.name] = file[tensor.offset : tensor.end].view(dtype).reshape(tensor.dims)
        return found

    def _content(self, path: Path) -> np.ndarray | None:
        """Return the content of a file, u8; None if it is smaller than a large page."""
        with _opened(path) as file:
            now = os.fstat(file)
            identity = now.st_dev, now.st_ino, now.st_mtime_ns, now.st_size
            if now.st_size < self._page:
                return None
            content = self._files.get(identity)
            if content is None:
                content = self._files[identity] = self._read(file, now.st_size)
            return content

    def _read(self, file: int, size: int) -> np.ndarray:
        """Return a copy of a file, or the mapped file."""
        content = self._allocated(size) if size <= free_memory() * _SHARE else None
        if content is None:
            mapped = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
            _ask_for_large_pages(mapped, 0, size)
            return np.frombuffer(mapped, np.uint8)
        _fill(content, file)
        return content

    def _allocated(self, size: int) -> np.ndarray | None:
        """Return memory that begins with a large page, u8 [size]; None if the process has a limit that forbids it."""
        try:
            memory = mmap.mmap(-1, size + self._page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            return None
        first = -np.frombuffer(memory, np.uint8).ctypes.data % self._page
        _ask_for_large_pages(memory, first, size)
        return np.frombuffer(memory, np.uint8, size, first)


def large_page_bytes(settings: Path = _SETTINGS) -> int:
    """Return the size of this system's large pages; 0 if a process cannot have any."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # not Linux
        return 0
    try:
        is_off = "[never]" in (settings / "enabled").read_text()
        return 0 if is_off else int((settings / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0


def _ask_for_large_pages(memory: mmap.mmap, first: int, size: int) -> None:
    """Ask for large pages in a part of memory. The system may refuse them, and then uses small ones."""
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE, first, size)


def _fill(content: np.ndarray, file: int) -> None:
    """Read a whole file with several threads. Raises ``OSError``."""

    def read(start: int) -> None:
        at, end = start, min(start + _PIECE, len(content))
        while at < end:
            count = os.preadv(file, [content[at:end].data], at)
            if not count:
                raise OSError("the file became shorter while it was read")
            at += count

    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
        list(readers.map(read, range(0, len(content), _PIECE)))


def _is_plain(name: str) -> bool:
    """Return True for the name of a file in the same folder."""
    return name not in ("", ".", "..") and Path(name).name == name


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)
