"""The engine loop: the one thread that owns an engine's scheduler, and the methods by which other threads reach it.

Requests arrive through a queue that never blocks the loop, and results leave through one ``Delivery`` each. The thread
starts with the first request, sleeps while there is nothing to do, and ends with the engine.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from ..plugins.errors import EnvironmentProblem
from .backends.base import Backend
from .errors import EngineClosed, EngineFailed, QueueFull, require_process
from .free_memory import return_freed_memory
from .policy.misfit import Misfits
from .running.request import Drafter, Request
from .running.submission import wait_for
from .scheduling.prefix_cache import PrefixCache
from .scheduling.scheduler import Scheduler

T = TypeVar("T")

# Loops whose threads must end before the interpreter exits, which must not happen during a native call.
_OPEN: weakref.WeakSet[Loop] = weakref.WeakSet()


@dataclass(frozen=True)
class Load:
    """The load: running and waiting requests, and the tokens that the caches hold and have room for.

    ``warnings`` are those of the engine, as in results.
    """

    running: int
    waiting: int
    slots: int = 0
    cached_tokens: int = 0
    cache_tokens: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def cache_share(self) -> float:
        """The fraction of all caches that holds tokens, 0 to 1."""
        return self.cached_tokens / self.cache_tokens if self.cache_tokens else 0.0


class _Call:
    """A call that runs in the loop's thread: between two passes or, if ``exclusive``, while every slot is idle."""

    def __init__(self, call: Callable[[], Any], *, exclusive: bool) -> None:
        self.call, self.exclusive, self.done = call, exclusive, Future[Any]()

    def run(self) -> None:
        """Run the call, unless its caller has stopped waiting."""
        if self.done.set_running_or_notify_cancel():
            try:
                self.done.set_result(self.call())
            except BaseException as error:
                self.done.set_exception(error if isinstance(error, Exception) else EngineFailed(error, usable=True))


class Loop:
    """Runs requests on a backend until it is closed. ``limit`` is the maximum number of waiting and running requests.

    ``max_prefill_tokens`` is the number of prompt tokens read between two rounds of running requests; None sizes it by
    time.
    ``prefix_cache_bytes`` is the memory for prompts that later prompts can share.
    """

    def __init__(
        self,
        backend: Backend,
        max_seq_len: int,
        max_queue_size: int,
        max_prefill_tokens: int | None,
        prefix_cache_bytes: int = 0,
    ) -> None:
        self.limit = backend.num_slots + max_queue_size
        self.slots, self._max_seq_len, self.misfits = backend.num_slots, max_seq_len, Misfits()
        self.prefix_cache_bytes = prefix_cache_bytes
        self._unloaded: weakref.WeakSet[Drafter] = weakref.WeakSet()  # drafters that requests still use
        prefixes = PrefixCache(prefix_cache_bytes, backend.kept_bytes)
        self._new_scheduler: Callable[[], Scheduler] = lambda: Scheduler(
            backend, max_seq_len, max_prefill_tokens, prefixes, self.misfits
        )
        self._scheduler: Scheduler | None = None
        self._inbox: SimpleQueue[Request | _Call | None] = SimpleQueue()  # None: close
        self._exclusive: deque[_Call] = deque()
        self._room = threading.Condition()
        self._in_flight: set[Request | _Call] = set()  # submitted and not ended; guarded by the lock
        self._count = 0  # requests among them
        self._is_closed = self._is_ending = self._drops = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    # -------------------------------------------------------------------------------------- called from any thread

    def submit(self, requests: Sequence[Request], *, waits: bool) -> None:
        """Submit requests, as many together as fit; ``waits`` for room for the rest, otherwise raises ``QueueFull``."""
        require_process(self._pid)
        left = deque(requests)
        while left:
            with self._room:
                self.require_open()
                while self._count >= self.limit:
                    if not waits:
                        raise QueueFull(self.limit, self.slots)
                    wait_for(self._room)
                    self.require_open()
                self._start()
                for request in [left.popleft() for _ in range(min(self.limit - self._count, len(left)))]:
                    request.submitted = time.perf_counter()
                    self._in_flight.add(request)
                    self._count += 1
                    self._inbox.put(request)

    def run_exclusive(self, call: Callable[[], T]) -> T:
        """Run ``call`` in the loop's thread while no request runs, and return its result.

        Waiting requests wait for it.
        """
        result: T = self._run_call(_Call(call, exclusive=True))
        return result

    def run_between(self, call: Callable[[], T]) -> T:
        """Run ``call`` in the loop's thread between two passes, and return its result. Requests continue afterwards."""
        result: T = self._run_call(_Call(call, exclusive=False))
        return result

    def _run_call(self, job: _Call) -> Any:
        require_process(self._pid)
        with self._room:
            self.require_open()
            self._start()
            self._in_flight.add(job)
            self._inbox.put(job)
        try:
            return job.done.result()
        except KeyboardInterrupt:
            job.done.cancel()
            raise KeyboardInterrupt from None

    def unload(self, name: str, drafter: Drafter | None) -> None:
        """Forget a drafter that new requests cannot use. Its memory is returned when the last request with it ends."""
        self.misfits.forget(name, drafter)
        if drafter is not None:
            self._unloaded.add(drafter)

    def close(self, *, drain: bool = False) -> None:
        """Accept no more requests, cancel the current ones or let them finish (``drain``), and wait for the thread."""
        if os.getpid() != self._pid:
            return
        self.retire(drain=drain)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def retire(self, *, drain: bool = True) -> None:
        """Accept no more requests, and return at once."""
        if os.getpid() != self._pid:
            return
        with self._room:
            self._is_closed = True
            self._drops = self._drops or not drain
            self._inbox.put(None)
            self._room.notify_all()

    @property
    def load(self) -> Load:
        """The current load, as seen from another thread."""
        scheduler, count = self._scheduler, self._count
        running, held = (0, 0) if scheduler is None else (scheduler.num_running, scheduler.num_committed)
        room = self.slots * self._max_seq_len
        return Load(running, max(0, count - running), self.slots, min(held, room), room, self.warnings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the users of the engine."""
        return self.misfits.warnings

    @property
    def is_closed(self) -> bool:
        """Return True if the loop accepts no more requests."""
        return self._is_closed or self._failure is not None

    def require_open(self) -> None:
        """Raise ``EngineClosed`` or ``EngineFailed`` if the loop accepts no more requests."""
        if self._is_closed:
            raise EngineClosed
        if self._failure is not None:
            raise EngineFailed(self._failure, usable=False)

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="peagle-engine", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise EnvironmentProblem(
                "cannot start the engine's thread", why=str(error), fix="raise the limit of threads (ulimit -u)"
            ) from error
        _OPEN.add(self)
        self._thread = thread

    # --------------------------------------------------------------------------------------- in the loop's thread

    def _run(self) -> None:
        """Run until the engine is closed. However the thread ends, every pending request is ended.

        All exceptions are caught: panics of Rust libraries are not subclasses of ``Exception``.
        """
        try:
            while not (self._is_ending and self._is_idle):
                try:
                    self._receive()
                    self._advance()
                except BaseException as error:
                    self._restart(error)
        except BaseException as error:
            self._shut_down(error)

    @property
    def _is_idle(self) -> bool:
        return not self._exclusive and (self._scheduler is None or self._scheduler.is_idle)

    def _receive(self) -> None:
        """Process incoming items; sleep until one arrives if there is nothing to do."""
        may_sleep = self._is_idle and not self._is_ending
        while True:
            if not may_sleep and self._inbox.empty():  # faster than catching ``Empty``; no other thread takes items
                break
            item = self._inbox.get()
            may_sleep = False
            if item is None:
                self._is_ending = True
            elif item not in self._in_flight:  # it ended when a pass failed
                continue
            elif isinstance(item, _Call):
                if item.exclusive:
                    self._exclusive.append(item)
                else:
                    item.run()
                    self._ended(item)
            else:
                self._scheduler = self._scheduler or self._new_scheduler()
                self._scheduler.submit(item)
        if self._drops:
            for each in self._in_flight:  # nothing is added any more
                if isinstance(each, Request):
                    each.delivery.is_unwanted = True

    def _advance(self) -> None:
        scheduler = self._scheduler
        if scheduler is not None:
            scheduler.admits = not self._exclusive
        if self._exclusive and (scheduler is None or scheduler.is_empty):
            self._call_exclusively(self._exclusive.popleft())
        elif scheduler is not None and not scheduler.is_idle:
            for request in scheduler.step():
                self._deliver(request)

    def _deliver(self, request: Request) -> None:
        if request.failure is not None:
            self._ended(request)
            request.delivery.fail(request.failure)
            return
        if request.delivery.in_pieces:
            request.delivery.put(request.take())
        if request.is_done:
            output = request.output(time.perf_counter(), self.warnings)
            self._ended(request)
            request.delivery.end(output)

    def _call_exclusively(self, job: _Call) -> None:
        job.run()
        self._ended(job)
        if self._scheduler is not None:
            waiting, self._scheduler = self._scheduler.requests, None
            self._scheduler = self._new_scheduler()
            for request in waiting:
                self._scheduler.submit(request)

    def _ended(self, each: Request | _Call) -> None:
        if isinstance(each, Request):
            unloaded = len(self._unloaded)
            each.release()
            if len(self._unloaded) < unloaded:
                return_freed_memory()
        with self._room:
            self._count -= isinstance(each, Request) and each in self._in_flight
            self._in_flight.discard(each)
            self._room.notify()

    def _restart(self, error: BaseException) -> None:
        """End all requests with the error and reset the scheduler. Raises if that fails."""
        self._scheduler = None
        self._exclusive.clear()
        try:
            self._scheduler = self._new_scheduler()
        except BaseException as again:
            self._shut_down(again, error)
            raise
        self._end_all(error, usable=True)

    def _shut_down(self, failure: BaseException, error: BaseException | None = None) -> None:
        """Accept no more requests because of ``failure``, and end all requests, with ``error`` if given."""
        with self._room:
            self._failure = self._failure or failure
            self._room.notify_all()
        self._end_all(error or failure, usable=False)

    def _end_all(self, error: BaseException, *, usable: bool) -> None:
        with self._room:
            here = list(self._in_flight)
        for each in here:
            self._ended(each)
            with suppress(Exception):  # one failing reader must not block the others
                failed = EngineFailed(error, usable=usable)
                if isinstance(each, Request):
                    each.delivery.fail(failed)
                elif not each.done.done():
                    each.done.set_exception(failed)


@atexit.register
def _close_all() -> None:
    for loop in list(_OPEN):
        loop.close()
