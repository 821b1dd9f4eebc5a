"""The choices of one HTTP request: they run concurrently, are read together and are cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request

from ...plugins.errors import UsageError
from ..requests.results import Delta, RequestOutput
from ..running.submission import AsyncSubmission
from .generation import Generation, encodings, submission_of
from .metrics import RequestMeter
from .problems import HttpRefusal, shutting_down
from .state import ServerState
from .usage import spec_decode_metrics

T = TypeVar("T")
CLIENT_GONE = 499  # for the log only; nginx uses the same status
_MIN_SECONDS = 1e-3  # of a choice that is submitted at the end of the time limit


class Choices:
    """The choices of a generation, each an engine request. Leaving the context cancels those that still run.

    ``runs`` are the pieces of each choice's text, each with a flag that is True for accepted drafts. ``prompts`` are
    the token ids of the prompts. The answers to those that are ``in_thought`` begin inside the reasoning.
    """

    def __init__(self, state: ServerState, generation: Generation) -> None:
        self.generation = generation
        self._state = state
        self._submissions: list[AsyncSubmission] = []
        self._meters: list[RequestMeter] = []
        self._outputs: dict[int, RequestOutput] = {}
        self.runs: list[list[tuple[str, bool]]] = []
        self.prompts: list[Sequence[int]] = []
        self.in_thought: list[bool] = []

    async def __aenter__(self) -> Choices:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Cancel the requests that still run."""
        for submission in self._submissions:
            submission.cancel()

    async def submit(self, request: Request) -> None:
        """Encode every input once and submit all choices, within the time limit and while the client is connected.

        Raises ``HttpRefusal`` and what ``Engine.submit`` raises; in that case none runs.
        """
        deadline = asyncio.get_running_loop().time() + self._state.limits.seconds
        try:
            async with asyncio.timeout_at(deadline):
                await _while_connected(request, self._submitted(deadline))
        except BaseException as error:
            self.give_up()
            if isinstance(error, UsageError):
                raise self.generation.reword(error) from None
            if isinstance(error, TimeoutError):
                raise self._timed_out() from None
            raise

    async def _submitted(self, deadline: float) -> None:
        state, generation, loop = self._state, self.generation, asyncio.get_running_loop()
        params, seed = generation.params, generation.params.seed
        for encode in encodings(state, generation):
            prompt = await loop.run_in_executor(state.encoders, encode)
            generation.require_room(len(prompt.ids), state.engine.max_seq_len)
            for choice in range(generation.choices):
                policy = params if seed is None else replace(params, seed=seed + choice)
                left = max(deadline - loop.time(), _MIN_SECONDS)
                self._submissions.append(submission_of(state, generation, prompt, policy, left))
                self._meters.append(state.metrics.watch())
                self.runs.append([])
                self.prompts.append(prompt.ids)
                self.in_thought.append(prompt.in_thought)
                await self._submissions[-1].submitted()

    def _timed_out(self) -> HttpRefusal:
        return HttpRefusal(
            408,
            f"the request timed out after {self._state.limits.seconds:g} seconds; fix: request fewer tokens, or start "
            "the server with a larger --request-timeout",
            is_final=True,
        )

    async def deltas(self, patience: float | None = None) -> AsyncIterator[tuple[int, Delta] | None]:
        """Yield the pieces of all choices as they arrive, each with the choice's index.

        Yields None whenever nothing has arrived for ``patience`` seconds. Raises ``HttpRefusal`` on timeout, and
        when the server ends.
        """
        arrived: asyncio.Queue[tuple[int, Delta] | Exception | None] = asyncio.Queue()

        async def follow(index: int) -> None:
            try:
                async for delta in self._submissions[index]:
                    if delta.finish_reason != "timeout":
                        self._meters[index].delta(delta)  # here, because a client may read slowly
                    arrived.put_nowait((index, delta))
                self._outputs[index] = output = await self._submissions[index]
                self._meters[index].end(output)
                arrived.put_nowait(None)
            except Exception as error:
                arrived.put_nowait(self.generation.reword(error) if isinstance(error, UsageError) else error)

        async def end() -> None:
            await self._state.ends.wait()
            arrived.put_nowait(shutting_down())

        left = len(self._submissions)
        tasks = [asyncio.create_task(each) for each in (*map(follow, range(left)), end())]
        try:
            while left:
                try:
                    async with asyncio.timeout(patience):
                        item = await arrived.get()
                except TimeoutError:
                    yield None
                    continue
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    left -= 1
                    continue
                index, delta = item
                if delta.finish_reason == "timeout":
                    raise self._timed_out()
                self.runs[index] += delta.runs
                yield item
        finally:
            for task in tasks:
                task.cancel()

    async def wait_all(self, request: Request) -> None:
        """Wait until all choices have finished. If the client disconnects first, cancel them."""

        async def collect() -> None:
            async for _ in self.deltas():
                pass

        await _while_connected(request, collect())

    @property
    def outputs(self) -> list[RequestOutput]:
        """The results of all choices, in order. All choices must have finished."""
        return [self._outputs[index] for index in range(len(self._submissions))]

    @property
    def prompted(self) -> int:
        """Number of prompt tokens; a prompt with several choices counts once."""
        return sum(len(output.prompt_token_ids) for output in self.outputs[:: self.generation.choices])

    @property
    def cached(self) -> int:
        """Number of those prompt tokens that the prefix cache had: for each prompt, the minimum over its choices."""
        found, each = [output.cached_tokens for output in self.outputs], self.generation.choices
        return sum(min(found[at : at + each]) for at in range(0, len(found), each))

    @property
    def metrics(self) -> dict[str, Any]:
        """vLLM's field ``metrics`` of a response, if the server reports it. All choices must have finished.

        It describes one text, so it is null for several choices, and for an engine and a request without drafts.
        """
        level, max_drafts = (
            self._state.settings.per_request_spec_decode_metrics,
            self._state.engine.num_speculative_tokens,
        )
        if level == "none":
            return {}
        acceptance = self.outputs[0].acceptance
        if len(self.outputs) > 1 or not (max_drafts or acceptance.drafted):
            return {"metrics": None}
        metrics = spec_decode_metrics(acceptance, max_drafts, is_detailed=level == "detailed")
        return {"metrics": {"speculative_decoding": metrics}}


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``. If the client disconnects first, cancel it and raise ``HttpRefusal``."""
    working, disconnected = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HttpRefusal(CLIENT_GONE, "the client disconnected before the answer was complete")
        return await working
    finally:
        working.cancel()
        disconnected.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
