"""Whether the server works: it is asked to generate, not whether its process lives."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from ..errors import QueueFull
from ..requests.params import SamplingParams
from .openai.routes import json
from .problems import HttpRefusal
from .state import ServerState

CANARY_SECONDS = 20.0
FRESH_SECONDS = 5.0  # so long a good answer counts, and a busy server need not write another one


async def health(request: Request) -> Response:
    """``GET /health``: 200 if a token was written a moment ago, or can be; else 503."""
    state = ServerState.of(request)
    if state.drains:
        raise HttpRefusal(503, "the server ends: it takes no more requests", retry_after=1)
    if time.monotonic() - state.metrics.last_token > FRESH_SECONDS:
        await _canary(state)
    return json({"status": "ok"})


async def ping(request: Request) -> Response:
    """``GET /ping``, as SageMaker asks it: an empty 200."""
    await health(request)
    return Response()


async def _canary(state: ServerState) -> None:
    """Have one token written. Raises ``HttpRefusal`` if none comes."""
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    submission = state.engine.submit_async([0], params, num_speculative_tokens=0, timeout=CANARY_SECONDS)
    try:
        async with asyncio.timeout(CANARY_SECONDS):
            try:
                if (await submission).token_ids:
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
