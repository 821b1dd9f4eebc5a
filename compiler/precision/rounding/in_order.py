"""Work on a stream of arrays on several threads: results in the order of the stream, and little of it in memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ....graphs.targets.checkpoint_pieces import Array, UnreadRows

_MOST_THREADS = 8  # more would wait for the disk, or for one another's turn with the interpreter
_FP32 = 4  # bytes
ROOM = 128 << 20  # bytes that wait for a thread or for whoever takes the results

Result = TypeVar("Result")


def processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[int, Array], Result], runs: Iterable[UnreadRows], threads: int | None = None
) -> Iterator[Result]:
    """What ``work(begin, values)`` makes of each run of rows, in turn, while threads read and work on the next ones.

    ``begin`` counts the values before a run. NumPy computes without the interpreter's lock, so threads do share the
    work. One run for each thread is held and one more, but no more bytes than there is room for: then at least one.
    """

    def done(begin: int, run: UnreadRows) -> Result:
        return work(begin, run.read())

    count = min(processors(), _MOST_THREADS) if threads is None else threads
    waiting: deque[tuple[int, Future[Result]]] = deque()
    begin = 0
    with ThreadPoolExecutor(count, thread_name_prefix="rounding") as pool:
        try:
            for run in runs:
                size = _FP32 * run.size
                while waiting and (len(waiting) > count or sum(each for each, _ in waiting) + size > ROOM):
                    yield waiting.popleft()[1].result()
                waiting.append((size, pool.submit(done, begin, run)))
                begin += run.size
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()
