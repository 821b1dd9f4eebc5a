"""Find data races: for every memory cell, the last access and the number of barriers passed.

Accesses are ordered by barriers of a warp (``bar.warp.sync``), a block or a cluster that both threads pass, and by
nothing else: shuffles, votes and reductions exchange registers, and CUDA promises no order of memory for them. Two
atomics never race with each other. Readers of a cell are kept as one group: the smallest of thread, warp, block,
cluster and grid that has them all; nothing is lost, because those that a later reader is ordered after are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .operations import Array
from .threads import BLOCK_LEVEL, CLUSTER_LEVEL, GRID_LEVEL, THREAD_LEVEL, WARP_LEVEL, Shape, Threads, common_level

READ, WRITE, ATOMIC = range(3)
KINDS = ("reads", "writes", "accesses atomically")
CONFLICTS = {READ: (WRITE, ATOMIC), WRITE: (WRITE, READ, ATOMIC), ATOMIC: (WRITE, READ)}

# Columns of a record: thread (-1: none), level of the group, barriers passed of warp, block, cluster, line.
_THREAD, _LEVEL, _WARP, _BLOCK, _CLUSTER, _LINE = range(6)


@dataclass(frozen=True)
class Race:
    """The later access is that of ``lane``; the earlier one is named by thread, kind and line."""

    lane: int
    cell: int
    kind: int
    thread: int
    line: int


class Shadow:
    """The history of a piece of memory, cell by cell. A cell has ``width`` bytes: the least that was accessed."""

    def __init__(self, size: int, width: int, shape: Shape) -> None:
        self.shape, self.width, self.size = shape, width, size
        self.records = [np.full((-(-size // width), 6), -1, np.int64) for _ in CONFLICTS]
        self.kinds_seen = set[int]()

    def access(
        self, kind: int, offset: Array, width: int, lanes: Array, threads: Threads, line: int, forever: bool = False
    ) -> Race | None:
        """Note an access of ``width`` bytes at each offset, and return a race if there is one.

        ``forever``: no later write is allowed, whatever lies between (``ld.global.nc``).
        """
        if width < self.width:
            self._refine(width)
        each = width // self.width
        cells = (offset // self.width)[:, None] + np.arange(each)
        cell, lane = cells.ravel(), np.repeat(lanes, each)
        number, passed = threads.number[lane], threads.passed[:, lane]
        for other in CONFLICTS[kind]:
            if other not in self.kinds_seen:
                continue
            old = self.records[other].take(cell, axis=0)
            known = old[:, _THREAD] >= 0
            if not known.any():
                continue
            bad = known & ~self._ordered(old, number, passed)
            if bad.any():
                i = int(np.flatnonzero(bad)[0])
                return Race(int(lane[i]), int(cell[i]), other, int(old[i, _THREAD]), int(old[i, _LINE]))
        new = np.empty((len(lane), 6), np.int64)
        new[:, _THREAD], new[:, _LEVEL] = number, GRID_LEVEL if forever else THREAD_LEVEL
        new[:, _WARP], new[:, _BLOCK], new[:, _CLUSTER], new[:, _LINE] = *passed[:3], line
        self.kinds_seen.add(kind)
        if kind == WRITE:
            return self._write(cell, lane, number, new)
        self._join(self.records[kind], cell, number, passed, new)
        return None

    def written(self, offset: Array, width: int) -> Array:
        """Return where any byte has been written since the launch."""
        cells = (offset // self.width)[:, None] + np.arange(max(width // self.width, 1))
        return ((self.records[WRITE][cells, _THREAD] >= 0) | (self.records[ATOMIC][cells, _THREAD] >= 0)).any(axis=1)

    def latest_cluster_phase(self, cells: slice, block: int) -> tuple[int, int, int]:
        """Return (phase, thread, line) of the latest access by another block than this, -1 if there is none."""
        best = (-1, -1, -1)
        for record in self.records:
            part = record[cells]
            foreign = (part[:, _THREAD] >= 0) & (part[:, _THREAD] // self.shape.stride != block)
            foreign |= (part[:, _THREAD] >= 0) & (part[:, _LEVEL] >= CLUSTER_LEVEL)
            if foreign.any():
                rows = part[foreign]
                row = rows[rows[:, _CLUSTER].argmax()]
                best = max(best, (int(row[_CLUSTER]), int(row[_THREAD]), int(row[_LINE])))
        return best

    def _refine(self, width: int) -> None:
        self.records = [np.repeat(record, self.width // width, axis=0) for record in self.records]
        self.width = width

    def _ordered(self, old: Array, number: Array, passed: Array) -> Array:
        """Return where the recorded group precedes a thread that has passed so many barriers."""
        level = np.maximum(old[:, _LEVEL], common_level(np.maximum(old[:, _THREAD], 0), number, self.shape))
        result = level <= THREAD_LEVEL
        if result.all():
            return result
        result |= (level <= WARP_LEVEL) & (old[:, _WARP] < passed[0])
        result |= (level <= BLOCK_LEVEL) & (old[:, _BLOCK] < passed[1])
        # An access after the arrival at a barrier belongs to the next one: arrivals are counted for it, waits for us.
        result |= (level <= CLUSTER_LEVEL) & (old[:, _CLUSTER] < passed[3])
        return result

    def _write(self, cell: Array, lane: Array, number: Array, new: Array) -> Race | None:
        """Note writes; two threads of one instruction that write one cell are a race."""
        record = self.records[WRITE]
        record[cell] = new
        twice = record[cell, _THREAD] != number
        if twice.any():
            i = int(np.flatnonzero(twice)[0])
            return Race(int(lane[i]), int(cell[i]), WRITE, int(record[cell[i], _THREAD]), int(record[cell[i], _LINE]))
        return None

    def _join(self, record: Array, cell: Array, number: Array, passed: Array, new: Array) -> None:
        """Note reads or atomics: the group grows by those that no barrier separates from it."""
        old = record.take(cell, axis=0)
        grows = old[:, _THREAD] >= 0
        if grows.any():
            grows &= ~self._ordered(old, number, passed)
        if grows.any():
            level = np.maximum(common_level(np.maximum(old[:, _THREAD], 0), number, self.shape), old[:, _LEVEL])
            new[:, _LEVEL] = np.where(grows, np.maximum(new[:, _LEVEL], level), new[:, _LEVEL])
            counts = np.maximum(new[:, _WARP : _CLUSTER + 1], old[:, _WARP : _CLUSTER + 1])
            new[:, _WARP : _CLUSTER + 1] = np.where(grows[:, None], counts, new[:, _WARP : _CLUSTER + 1])
        record[cell] = new
        several = np.flatnonzero(record[cell, _THREAD] != number)
        if several.size:
            last = record[cell[several], _THREAD]
            level = np.maximum(common_level(last, number[several], self.shape), new[several, _LEVEL])
            np.maximum.at(record, (cell[several], _LEVEL), level)
            for column in (_WARP, _BLOCK, _CLUSTER):
                np.maximum.at(record, (cell[several], column), new[several, column])
