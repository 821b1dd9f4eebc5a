"""Positions of a slot's caches in page-locked memory, copied out of the GPU and back in order on its stream."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .device import Box, Device
from .memory import Caches

_ALLOCATION_BATCH = 16  # buffers that are allocated at once: page-locking memory takes time


@dataclass(frozen=True, eq=False)
class KeptPositions:
    """A copy of the positions from ``start`` up to ``end`` in all caches of a slot."""

    start: int
    end: int
    content: np.ndarray

    is_read = True  # a drafter reads every column at once

    @property
    def num_bytes(self) -> int:
        """The size of the copy in bytes."""
        return self.content.nbytes


class KeptMemory:
    """Copies positions of the caches. A buffer is reused when nothing refers to its copy any more.

    Copies run in order, so the next copy into a buffer cannot overtake one out of it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[int, list[np.ndarray]] = {}

    def keep(self, caches: Sequence[Caches], slot: int, start: int, end: int) -> KeptPositions:
        """Enqueue the copy of positions of a slot in these caches to the host."""
        content = self._buffer((end - start) * position_bytes(caches))
        for box, copy, size in _copies(caches, slot, start, end, content):
            self._device.copy_box(copy, box, *size)
        kept = KeptPositions(start, end, content)
        weakref.finalize(kept, self._free[content.nbytes].append, content).atexit = False
        return kept

    def restore(self, caches: Sequence[Caches], slot: int, kept: KeptPositions) -> None:
        """Enqueue the copy back, into the same caches of any slot."""
        for box, copy, size in _copies(caches, slot, kept.start, kept.end, kept.content):
            self._device.copy_box(box, copy, *size)

    def _buffer(self, size: int) -> np.ndarray:
        free = self._free.setdefault(size, [])
        if not free:
            free.extend(self._device.pinned((_ALLOCATION_BATCH, size), np.uint8))
        return free.pop()


def position_bytes(caches: Sequence[Caches]) -> int:
    """Return the bytes of one position of one slot in all of these caches."""
    return sum(each.position_bytes for each in caches)


def _copies(
    caches: Sequence[Caches], slot: int, start: int, end: int, content: np.ndarray
) -> list[tuple[Box, Box, tuple[int, int, int]]]:
    """Return the boxes in the caches, those in the copy, which lie one after the other, and their sizes."""
    found, address = [], content.ctypes.data
    for box, size in (box for each in caches for box in each.boxes(slot, start, end - start)):
        width, height, depth = size
        found.append((box, Box(address, width, height), size))
        address += width * height * depth
    return found
