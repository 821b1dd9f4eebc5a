"""A request that was submitted: its pieces as they come, its result, and how to cancel it; for threads and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from .errors import require_process
from .requests.results import Delta, RequestOutput
from .running.request import Request

T = TypeVar("T")


class Submission:
    """Iterates over the ``Delta``s of a request that runs, whoever reads it or not; each is given once.

    The deltas together hold every token id and all of the text. A request whose submission nobody holds any more is
    cancelled: nobody could read it. Raises ``EngineFailed`` where a pass of the engine failed meanwhile.
    """

    def __init__(self, request: Request) -> None:
        self._request, self._pid = request, os.getpid()

    def __iter__(self) -> Submission:
        return self

    def __next__(self) -> Delta:
        """Return the next piece, waiting for it."""
        require_process(self._pid)
        delta = self._request.delivery.take()
        if delta is None:
            raise StopIteration
        return delta

    def take_or_call(self, waker: Callable[[], None]) -> tuple[bool, Delta | None]:
        """Return True and the next piece, None after the last; where it would be waited for, False and None.

        Then ``waker`` is called once, by another thread and soon to return, when there is one. Raises ``EngineFailed``.
        """
        require_process(self._pid)
        return self._request.delivery.take_or_call(waker)

    def result(self) -> RequestOutput:
        """Return the output of the whole request, waiting for it; pieces that were not taken can still be."""
        require_process(self._pid)
        return self._request.delivery.output()

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The ids of its prompt."""
        return self._request.prompt

    @property
    def is_done(self) -> bool:
        """Whether it has ended, so that ``result`` returns at once."""
        return self._request.delivery.has_ended

    def cancel(self) -> None:
        """Have it end after the pass that runs, with the ``finish_reason`` "abort" and what it has got by then.

        One that has ended stays as it is. Safe from any thread, task or signal.
        """
        self._request.is_unwanted = True

    def __del__(self) -> None:
        self._request.is_unwanted = True


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
        return await self._submission()

    def __aiter__(self) -> AsyncSubmission:
        return self

    async def __anext__(self) -> Delta:
        delivery = (await self._submission())._request.delivery
        while True:
            woken, waker = _waker()
            is_there, delta = delivery.take_or_call(waker)
            if is_there:
                if delta is None:
                    raise StopAsyncIteration
                return delta
            await self._wait(woken)

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self._result().__await__()

    async def _result(self) -> RequestOutput:
        delivery = (await self._submission())._request.delivery
        while True:
            woken, waker = _waker()
            output = delivery.output_or_call(waker)
            if output is not None:
                return output
            await self._wait(woken)

    async def _submission(self) -> Submission:
        if self._begun is None:
            self._begun = asyncio.ensure_future(asyncio.to_thread(self._submit))
            self._begun.add_done_callback(lambda _: self.cancel() if self._is_unwanted else None)
        return await self._wait(asyncio.shield(self._begun))

    async def _wait(self, woken: asyncio.Future[T]) -> T:
        try:
            return await woken
        except asyncio.CancelledError:
            self.cancel()
            raise


def _waker() -> tuple[asyncio.Future[None], Callable[[], None]]:
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
