"""Process a stream of arrays on several threads, in order and with bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ....graphs.targets.checkpoint_pieces import Array, UnreadRows
from ...hardware.processors import processors

_MAX_THREADS = 8  # more would wait for the disk or the interpreter lock
_FP32 = 4  # bytes
ROOM = 128 << 20  # bytes that may wait for a thread or for the consumer

Result = TypeVar("Result")


def in_order(
    work: Callable[[int, Array], Result], runs: Iterable[UnreadRows], threads: int | None = None
) -> Iterator[Result]:
    """Yield ``work(begin, values)`` for each run of rows in order, while threads prepare the next ones.

    ``begin`` is the number of values before the run. NumPy releases the interpreter lock, so the threads run in
    parallel. One run per thread plus one is held in memory, limited to ``ROOM`` bytes, but at least one run.
    """

    def done(begin: int, run: UnreadRows) -> Result:
        return work(begin, run.read())

    count = min(processors(), _MAX_THREADS) if threads is None else threads
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
