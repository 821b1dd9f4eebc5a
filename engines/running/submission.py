"""The future of one request: pieces of its text, one end, and cancellation.

The engine's thread writes a ``Delivery``. Readers use it through a ``Submission`` in threads, an ``AsyncSubmission`` in
event loops, or a ``Stream``. Nothing polls: readers sleep until there is something to read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from ...plugins.errors import UsageError
from ..errors import require_process
from ..requests.results import Delta, RequestOutput

T = TypeVar("T")
Waker = Callable[[], None]


def wait_for(changed: threading.Condition) -> None:
    """Wait for a condition. Ctrl-C interrupts it without frames of ``threading`` in the traceback."""
    try:
        changed.wait()
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None


class Delivery:
    """Pieces of one request, each taken once, and its end: either an output or an error.

    ``in_pieces`` False stores only the end. ``at_end`` is called once, by the engine's thread. ``is_unwanted`` requests
    cancellation, from any thread, task or signal handler.

    Readers that pass a ``waker`` do not block: it is called once, from another thread, when there is something new. It
    must return quickly.
    """

    def __init__(self, *, in_pieces: bool = True, at_end: Callable[[], object] | None = None) -> None:
        self.in_pieces, self.is_unwanted = in_pieces, False
        self._at_end = at_end
        self._deltas: deque[Delta] = deque()
        self._changed = threading.Condition()
        self._wakers: list[Waker] = []
        self._output: RequestOutput | None = None
        self._error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        """Return True if nothing more will arrive."""
        return self._output is not None or self._error is not None

    def put(self, delta: Delta) -> None:
        """Add a piece."""
        with self._changed:
            self._deltas.append(delta)
            self._wake()

    def end(self, output: RequestOutput) -> None:
        """Set the result; nothing may follow."""
        self._finish(output, None)

    def fail(self, error: Exception) -> None:
        """Set the error; nothing may follow."""
        self._finish(None, error)

    def _finish(self, output: RequestOutput | None, error: Exception | None) -> None:
        with self._changed:
            if self.has_ended:
                raise ValueError("the request has already ended")
            self._output, self._error = output, error
            self._wake()
        if self._at_end is not None:
            self._at_end()

    def _wake(self) -> None:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    def take(self, waker: Waker | None = None) -> tuple[bool, Delta | None]:
        """Return True and the next piece, None after the last; False and None if there is none yet.

        Raises the error that ended the request.
        """
        with self._changed:
            if not self._is_there(lambda: bool(self._deltas) or self.has_ended, waker):
                return False, None
            if self._deltas:
                return True, self._deltas.popleft()
            if self._error is not None:
                raise self._error
            return True, None

    def output(self, waker: Waker | None = None) -> tuple[bool, RequestOutput | None]:
        """Return True and the result, or False and None if there is none yet.

        Raises the error that ended the request.
        """
        with self._changed:
            if not self._is_there(lambda: self.has_ended, waker):
                return False, None
        if self._error is not None:
            raise self._error
        return True, self._output

    def _is_there(self, is_there: Callable[[], bool], waker: Waker | None) -> bool:
        """Wait, with the lock held, until ``is_there`` returns true; with a waker, return its result without
        waiting."""
        while not is_there():
            if waker is not None:
                self._wakers.append(waker)
                return False
            wait_for(self._changed)
        return True


class Submission:
    """Iterates over the ``Delta``s of a running request; each is returned once.

    The deltas together contain every token id and the whole text. A request is cancelled when its submission is
    garbage-collected, because nothing can read it. Raises ``EngineFailed`` if a pass of the engine fails.
    """

    def __init__(self, prompt: tuple[int, ...], delivery: Delivery) -> None:
        self._delivery, self._prompt, self._pid = delivery, prompt, os.getpid()

    def __iter__(self) -> Submission:
        return self

    def __next__(self) -> Delta:
        """Wait for the next piece and return it."""
        require_process(self._pid)
        _, delta = self._delivery.take()
        if delta is None:
            raise StopIteration
        return delta

    def take_or_call(self, waker: Waker) -> tuple[bool, Delta | None]:
        """Return True and the next piece (None after the last one), or False and None if no piece is available yet.

        In the second case, ``waker`` is called once, from another thread, as soon as a piece is available; it must
        return quickly. Raises ``EngineFailed``.
        """
        require_process(self._pid)
        return self._delivery.take(waker)

    def result(self) -> RequestOutput:
        """Wait for the whole request and return its output; pieces that were not taken remain available."""
        require_process(self._pid)
        return _there(self._delivery.output()[1])

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The token ids of the prompt."""
        return self._prompt

    @property
    def is_done(self) -> bool:
        """Return True if the request has ended, so that ``result`` returns at once."""
        return self._delivery.has_ended

    def cancel(self) -> None:
        """End the request after the current pass, with ``finish_reason`` "abort" and the text so far.

        Has no effect on a finished request. Safe from any thread, task or signal handler.
        """
        self._delivery.is_unwanted = True

    __del__ = cancel


class AsyncSubmission:
    """A request for ``async for`` (its ``Delta``s), ``await`` (its ``RequestOutput``), or both.

    It is submitted when first awaited, from another thread, so that encoding a long prompt does not block the event
    loop. Cancelling a task that awaits it cancels the request.
    """

    def __init__(self, submit: Callable[[], Submission]) -> None:
        self._submit = submit
        self._begun: asyncio.Task[Submission] | None = None
        self._is_unwanted = False

    def cancel(self) -> None:
        """End the request after the current pass, with ``finish_reason`` "abort"."""
        self._is_unwanted = True
        if (begun := self._begun) is not None and begun.done() and not begun.cancelled() and not begun.exception():
            begun.result().cancel()

    async def submitted(self) -> Submission:
        """Wait until the request is queued and return its submission. Raises what ``Engine.submit`` raises."""
        if self._begun is None:
            self._begun = asyncio.ensure_future(asyncio.to_thread(self._submit))
            self._begun.add_done_callback(lambda _: self.cancel() if self._is_unwanted else None)
        return await self._wait(asyncio.shield(self._begun))

    def __aiter__(self) -> AsyncSubmission:
        return self

    async def __anext__(self) -> Delta:
        delta = await self._wait_for((await self.submitted())._delivery.take)
        if delta is None:
            raise StopAsyncIteration
        return delta

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self._result().__await__()

    async def _result(self) -> RequestOutput:
        return _there(await self._wait_for((await self.submitted())._delivery.output))

    async def _wait_for(self, take: Callable[[Waker], tuple[bool, T]]) -> T:
        """Return the result of ``take`` as soon as it is available."""
        while True:
            wakeup, waker = _waker()
            is_there, found = take(waker)
            if is_there:
                return found
            await self._wait(wakeup)

    async def _wait(self, wakeup: asyncio.Future[T]) -> T:
        try:
            return await wakeup
        except asyncio.CancelledError:
            self.cancel()
            raise


class Stream:
    """Iterates over the ``Delta``s of one request; ``result`` is its ``RequestOutput`` after it has finished.

    The deltas together contain every token id and the whole text. The request runs whether or not they are read.
    """

    def __init__(self, submission: Submission) -> None:
        self._submission = submission
        self._is_read = False

    def __iter__(self) -> Iterator[Delta]:
        for delta in self._submission:
            self._is_read = self._is_read or delta.finish_reason is not None
            yield delta

    def abort(self) -> None:
        """End the request after the current pass, with ``finish_reason`` "abort".

        Safe from any thread or signal handler.
        """
        self._submission.cancel()

    @property
    def result(self) -> RequestOutput:
        """The output of the whole request. Raises ``UsageError`` before the stream has finished."""
        if not self._is_read:
            raise UsageError("the stream has not finished", fix="iterate over the stream to its end first")
        return self._submission.result()


def _there(output: RequestOutput | None) -> RequestOutput:
    if output is None:
        raise ValueError("the request has not finished")
    return output


def _waker() -> tuple[asyncio.Future[None], Waker]:
    """Return a future of the running event loop, and a function that completes it from another thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_set_done, future)

    return future, wake


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
