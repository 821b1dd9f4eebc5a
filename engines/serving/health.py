"""Whether the server works: it is asked to generate, not whether its process lives."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from ...plugins.errors import PeagleError
from ..errors import QueueFull
from ..requests.params import SamplingParams
from .answering import json_response
from .problems import HttpRefusal
from .state import ServerState

CANARY_SECONDS = 20.0
FRESH_SECONDS = 5.0  # so long a good answer counts, and a busy server need not write another one
PING_SECONDS = 1.5  # SageMaker waits for 2


async def health(request: Request) -> Response:
    """``GET /health``: 200 if a token was written a moment ago, or can be; else 503."""
    state = ServerState.of(request)
    _require_open(state)
    if not _is_fresh(state, FRESH_SECONDS):
        await asyncio.shield(_canary(state))
    warnings = state.engine.load_now.warnings
    return json_response({"status": "ok", **({"warnings": warnings} if warnings else {})})


async def ping(request: Request) -> Response:
    """``GET /ping``, as SageMaker asks it: an empty 200, soon.

    Where a token takes longer (a long prompt is read), it is answered by when the last one came, and the next ping by
    what has become of this one's.
    """
    state = ServerState.of(request)
    _require_open(state)
    if not _is_fresh(state, FRESH_SECONDS):
        canary = _canary(state)
        await asyncio.wait([canary], timeout=PING_SECONDS)
        if canary.done():
            canary.result()
        elif not _is_fresh(state, FRESH_SECONDS + CANARY_SECONDS):
            raise HttpRefusal(503, "no token has come yet", retry_after=5)
    return Response()


def _require_open(state: ServerState) -> None:
    if state.drains:
        raise HttpRefusal(503, "the server ends: it takes no more requests", retry_after=1)
    try:
        state.engine.require_open()
    except PeagleError as error:  # a token of a moment ago says nothing then
        raise HttpRefusal(503, error.in_a_line) from None


def _is_fresh(state: ServerState, seconds: float) -> bool:
    return time.monotonic() - state.metrics.last_token <= seconds


def _canary(state: ServerState) -> asyncio.Task[None]:
    """The request for one token that is on its way, for whoever asks meanwhile; a new one if there is none."""
    if state.canary is None or state.canary.done():
        state.canary = asyncio.ensure_future(_write_a_token(state))
        state.canary.add_done_callback(lambda canary: canary.cancelled() or canary.exception())  # heard, if by nobody
    return state.canary


async def _write_a_token(state: ServerState) -> None:
    """Have one token written. Raises ``HttpRefusal`` if none comes."""
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    submission = state.engine.submit_async([0], params, num_speculative_tokens=0, timeout=CANARY_SECONDS)
    try:
        async with asyncio.timeout(CANARY_SECONDS):
            try:
                if not (await submission).token_ids:
                    raise TimeoutError
                state.metrics.note_token()
            except QueueFull:
                await _token_of_another(state)
    except TimeoutError:
        raise HttpRefusal(503, f"no token came within {CANARY_SECONDS:g} seconds", retry_after=5) from None


async def _token_of_another(state: ServerState) -> None:
    """Wait for a token of whoever fills the queue: a server with much to do is none that must be replaced."""
    before = state.metrics.last_token
    while state.metrics.last_token == before:
        await asyncio.sleep(0.05)
