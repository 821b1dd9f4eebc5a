"""Runs a generation and builds its HTTP response: admission, submission, rendering (whole or streamed) and logging."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ...plugins.errors import PeagleError
from ..answer_styles import DEFAULT
from .access import FIGURES, REFUSAL, REQUEST_ID, TOLERANCE, log
from .api_face import face_of
from .choices import Choices
from .generation import Conversation, Generation, admitted, answer_style
from .problems import HttpRefusal
from .rendering import Renderer, Reporter
from .state import ServerState
from .usage import figures


def json_response(content: Any) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(content), media_type="application/json")


async def answer(state: ServerState, request: Request, generation: Generation, renderer: Renderer) -> Response:
    """Run ``generation`` and return its response, formatted by ``renderer``.

    Raises ``HttpRefusal`` and engine errors if the generation cannot start. Once a stream has started, an error is sent
    as its last piece.
    """
    style = await answer_style(state) if isinstance(generation.source, Conversation) else DEFAULT
    choices = Choices(state, await admitted(state, generation))
    await choices.submit(request)
    reporter = Reporter(choices, style, state.engine.tokenizer.decode)
    if generation.streams:
        return AnswerStream(choices, _streamed(state, request, choices, reporter, renderer), renderer.stream_type)
    async with choices:
        await choices.wait_all(request)
    _log_answer(state, request, choices)
    found = zip(choices.outputs, choices.runs, strict=True)
    answers = [reporter.report(index, output, runs) for index, (output, runs) in enumerate(found)]
    return json_response(renderer.body(answers, choices))


class AnswerStream(StreamingResponse):
    """Streaming response that cancels its remaining requests when it ends for any reason."""

    def __init__(self, choices: Choices, pieces: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(
            pieces,
            media_type=media_type,
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},  # keeps proxies from buffering the stream
        )
        self._choices = choices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._choices:
            await super().__call__(scope, receive, send)


async def _streamed(
    state: ServerState, request: Request, choices: Choices, reporter: Reporter, renderer: Renderer
) -> AsyncIterator[bytes]:
    """Yield the pieces of a stream. Errors become pieces too, because the status line has already been sent."""
    for piece in renderer.opening(choices):
        yield piece
    last = time.monotonic()
    try:
        async for arrived in choices.deltas(renderer.patience):
            pieces = list[bytes]()
            if arrived is not None:
                index, delta = arrived
                pieces = [*renderer.pieces(reporter.report(index, delta, delta.runs))]
            # Tokens may give no piece for minutes: those of a call, or of reasoning that is not shown.
            is_silent = renderer.patience is not None and time.monotonic() - last >= renderer.patience
            if not pieces and (arrived is None or is_silent):
                pieces = [*renderer.waiting()]
            for piece in pieces:
                yield piece
                last = time.monotonic()
        _log_answer(state, request, choices)
    except (HttpRefusal, PeagleError) as error:
        request.scope[REFUSAL] = refusal = face_of(request.scope).refusal_of(error)
        state.metrics.refuse(refusal.status)
        for piece in renderer.failure(refusal):
            yield piece
        return
    for piece in renderer.closing(choices):
        yield piece


def _log_answer(state: ServerState, request: Request, choices: Choices) -> None:
    """Add statistics and the acceptance tolerance to the request's log line; log prompts and answers if enabled."""
    request.scope[FIGURES] = figures(choices.outputs, choices.cached, state.engine.load_now.cache_tokens)
    if any(output.acceptance.is_lossy for output in choices.outputs):
        request.scope[TOLERANCE] = max(output.acceptance.tolerance for output in choices.outputs)
    if state.settings.log_prompts:
        decode = state.engine.tokenizer.decode
        for output in choices.outputs:
            log("answer", id=request.scope[REQUEST_ID], prompt=decode(list(output.prompt_token_ids)), text=output.text)
