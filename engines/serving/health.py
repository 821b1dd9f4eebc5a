"""Health checks that generate a token rather than only check that the process is alive."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from ...plugins.errors import PeagleError
from ..errors import QueueFull
from ..requests.params import SamplingParams
from .answering import json_response
from .problems import HttpRefusal, shutting_down
from .state import ServerState

CANARY_SECONDS = 20.0
FRESH_SECONDS = 5.0  # a token this recent counts as healthy, so a busy server runs no extra request
PING_SECONDS = 1.5  # SageMaker times out after 2


async def health(request: Request) -> Response:
    """``GET /health``: 200 if the engine wrote a token recently or can write one now, else 503."""
    state = ServerState.of(request)
    _require_open(state)
    if not _is_fresh(state, FRESH_SECONDS):
        await asyncio.shield(_canary(state))
    warnings = state.engine.load_now.warnings
    return json_response({"status": "ok", **({"warnings": warnings} if warnings else {})})


async def ping(request: Request) -> Response:
    """``GET /ping``, SageMaker's health check: an empty 200, returned quickly.

    If a token takes too long (for example during a long prefill), the answer depends on when the last token was
    written. The next ping then uses the result of this one's request.
    """
    state = ServerState.of(request)
    _require_open(state)
    if not _is_fresh(state, FRESH_SECONDS):
        canary = _canary(state)
        await asyncio.wait([canary], timeout=PING_SECONDS)
        if canary.done():
            canary.result()
        elif not _is_fresh(state, FRESH_SECONDS + CANARY_SECONDS):
            raise HttpRefusal(503, "the engine has not generated a token yet", retry_after=5)
    return Response()


def _require_open(state: ServerState) -> None:
    if state.drains:
        raise shutting_down()
    try:
        state.engine.require_open()
    except PeagleError as error:  # the engine failed, even if it wrote a token a moment ago
        raise HttpRefusal(503, error.one_line) from None


def _is_fresh(state: ServerState, seconds: float) -> bool:
    return time.monotonic() - state.metrics.last_token <= seconds


def _canary(state: ServerState) -> asyncio.Task[None]:
    """Return the pending one-token request, shared by concurrent health checks; start one if none is pending."""
    if state.canary is None or state.canary.done():
        state.canary = asyncio.ensure_future(_write_a_token(state))
        state.canary.add_done_callback(lambda canary: canary.cancelled() or canary.exception())  # marks it retrieved
    return state.canary


async def _write_a_token(state: ServerState) -> None:
    """Generate one token. Raises ``HttpRefusal`` if that fails."""
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
        raise HttpRefusal(503, f"the engine generated no token in {CANARY_SECONDS:g} seconds", retry_after=5) from None


async def _token_of_another(state: ServerState) -> None:
    """Wait for a token of another request when the queue is full: a busy server is healthy."""
    before = state.metrics.last_token
    while state.metrics.last_token == before:
        await asyncio.sleep(0.05)
