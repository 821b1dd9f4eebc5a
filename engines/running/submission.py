"""The future of one request: pieces of its text as they come, one end, and the wish that it end early.

The engine's thread writes a ``Delivery``. Its readers have it as a ``Submission`` in threads, as an ``AsyncSubmission``
in event loops, or as a ``Stream``. Nobody polls: readers sleep until there is something.
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
    """Wait for a condition. Ctrl-C ends it, without the frames of ``threading`` in its traceback."""
    try:
        changed.wait()
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None


class Delivery:
    """Pieces of one request, each taken once, and how it ended: an output or an error, and never both.

    ``in_pieces`` False keeps the end alone. ``at_end`` is called once, by the engine's thread. ``is_unwanted`` asks for
    an early end, from any thread, task or signal.

    Readers that give a ``waker`` do not wait: it is called once, by another thread and soon to return, when there is
    something new.
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
        """Whether nothing more comes than what can be taken now."""
        return self._output is not None or self._error is not None

    def put(self, delta: Delta) -> None:
        """Hand over a piece."""
        with self._changed:
            self._deltas.append(delta)
            self._wake()

    def end(self, output: RequestOutput) -> None:
        """Hand over the result; nothing may follow."""
        self._finish(output, None)

    def fail(self, error: Exception) -> None:
        """Hand over the error that ended it; nothing may follow."""
        self._finish(None, error)

    def _finish(self, output: RequestOutput | None, error: Exception | None) -> None:
        with self._changed:
            if self.has_ended:
                raise ValueError("a request ends once")
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
        """Return True and the next piece, None after the last; False and None where there is none yet.

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
        """Return True and the result; False and None where there is none yet. Raises the error that ended it."""
        with self._changed:
            if not self._is_there(lambda: self.has_ended, waker):
                return False, None
        if self._error is not None:
            raise self._error
        return True, self._output

    def _is_there(self, is_there: Callable[[], bool], waker: Waker | None) -> bool:
        """Wait, the lock held, for what is to be there; with a waker, say whether it is."""
        while not is_there():
            if waker is not None:
                self._wakers.append(waker)
                return False
            wait_for(self._changed)
        return True


class Submission:
    """Iterates over the ``Delta``s of a request that runs, whoever reads it or not; each is given once.

    The deltas together hold every token id and all of the text. A request whose submission nobody holds any more is
    cancelled: nobody could read it. Raises ``EngineFailed`` where a pass of the engine failed meanwhile.
    """

    def __init__(self, prompt: tuple[int, ...], delivery: Delivery) -> None:
        self._delivery, self._prompt, self._pid = delivery, prompt, os.getpid()

    def __iter__(self) -> Submission:
        return self

    def __next__(self) -> Delta:
        """Return the next piece, waiting for it."""
        require_process(self._pid)
        _, delta = self._delivery.take()
        if delta is None:
            raise StopIteration
        return delta

    def take_or_call(self, waker: Waker) -> tuple[bool, Delta | None]:
        """Return True and the next piece, None after the last; where it would be waited for, False and None.

        Then ``waker`` is called once, by another thread and soon to return, when there is one. Raises ``EngineFailed``.
        """
        require_process(self._pid)
        return self._delivery.take(waker)

    def result(self) -> RequestOutput:
        """Return the output of the whole request, waiting for it; pieces that were not taken can still be."""
        require_process(self._pid)
        return _there(self._delivery.output()[1])

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The ids of its prompt."""
        return self._prompt

    @property
    def is_done(self) -> bool:
        """Whether it has ended, so that ``result`` returns at once."""
        return self._delivery.has_ended

    def cancel(self) -> None:
        """Have it end after the pass that runs, with the ``finish_reason`` "abort" and what it has got by then.

        One that has ended stays as it is. Safe from any thread, task or signal.
        """
        self._delivery.is_unwanted = True

    __del__ = cancel


class AsyncSubmission:
    """A request for ``async for`` (its ``Delta``s) or ``await`` (its ``RequestOutput``), or both.

    It is submitted when it is first waited for, by another thread, so that no event loop waits while a long prompt is
    encoded. A task that is cancelled while it waits cancels the request.
    """

    def __init__(self, submit: Callable[[], Submission]) -> None:
        self._submit = submit
        self._begun: asyncio.Task[Submission] | None = None
        self._is_unwanted = False

    def cancel(self) -> None:
        """Have it end after the pass that runs, with the ``finish_reason`` "abort"."""
        self._is_unwanted = True
        if (begun := self._begun) is not None and begun.done() and not begun.cancelled() and not begun.exception():
            begun.result().cancel()

    async def submitted(self) -> Submission:
        """Wait until it stands in the queue, and return the submission. Raises what ``Engine.submit`` raises."""
        if self._begun is None:
            self._begun = asyncio.ensure_future(asyncio.to_thread(self._submit))
            self._begun.add_done_callback(lambda _: self.cancel() if self._is_unwanted else None)
        return await self._wait(asyncio.shield(self._begun))

    def __aiter__(self) -> AsyncSubmission:
        return self

    async def __anext__(self) -> Delta:
        delta = await self._woken((await self.submitted())._delivery.take)
        if delta is None:
            raise StopAsyncIteration
        return delta

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self._result().__await__()

    async def _result(self) -> RequestOutput:
        return _there(await self._woken((await self.submitted())._delivery.output))

    async def _woken(self, take: Callable[[Waker], tuple[bool, T]]) -> T:
        """What ``take`` takes, as soon as it is there."""
        while True:
            woken, waker = _waker()
            is_there, found = take(waker)
            if is_there:
                return found
            await self._wait(woken)

    async def _wait(self, woken: asyncio.Future[T]) -> T:
        try:
            return await woken
        except asyncio.CancelledError:
            self.cancel()
            raise


class Stream:
    """Iterates over the ``Delta``s of one request; ``result`` is its ``RequestOutput`` once it has finished.

    The deltas together hold every token id and all of the text. The request runs whether they are read or not.
    """

    def __init__(self, submission: Submission) -> None:
        self._submission = submission
        self._is_read = False

    def __iter__(self) -> Iterator[Delta]:
        for delta in self._submission:
            self._is_read = self._is_read or delta.finish_reason is not None
            yield delta

    def abort(self) -> None:
        """Have it end after the pass that runs, with the ``finish_reason`` "abort". Safe from any thread or signal."""
        self._submission.cancel()

    @property
    def result(self) -> RequestOutput:
        """The output of the whole request. Raises ``UsageError`` while it is still streaming."""
        if not self._is_read:
            raise UsageError("the stream has not finished", fix="iterate over it to its end first")
        return self._submission.result()


def _there(output: RequestOutput | None) -> RequestOutput:
    if output is None:
        raise ValueError("the request has not ended")
    return output


def _waker() -> tuple[asyncio.Future[None], Waker]:
    """A future of the running event loop, and what fulfils it from another thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop was closed, and nobody waits
            loop.call_soon_threadsafe(_fulfil, future)

    return future, wake


def _fulfil(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
