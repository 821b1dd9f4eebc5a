"""OpenAI's API: completions and chat completions, streamed or whole, and the models there are.

https://platform.openai.com/docs/api-reference; docs/serving.md lists every field and what becomes of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ....plugins.errors import PeagleError, UsageError
from ...requests.params import SamplingParams
from ...submission import AsyncSubmission
from ...text.answer_styles import READ
from ..access import FIGURES, REFUSAL, REQUEST_ID, TOLERANCE, log
from ..problems import HttpRefusal, refusal_of
from ..reading import read_body
from ..state import ServerState
from .answering import Choices, Submit
from .bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, body_of
from .channel_bodies import for_style
from .chat_answer import ChatAnswer
from .inert_fields import NEUTRAL_IN_CHAT, require_neutral
from .options import Asked, asked_of
from .rendering import DONE, Answer, CompletionAnswer, Echo, event
from .usage import figures


async def completions(request: Request) -> Response:
    """``POST /v1/completions``."""
    state = ServerState.of(request)
    return await complete(state, request, await read_body(request, state.limits))


async def chat_completions(request: Request) -> Response:
    """``POST /v1/chat/completions``."""
    state = ServerState.of(request)
    return await chat(state, request, await read_body(request, state.limits))


async def complete(state: ServerState, request: Request, raw: bytes) -> Response:
    """Continue one prompt or several, each as text or token ids."""
    body = body_of(raw, CompletionBody)
    state.check_model(body.model)
    given = _prompts(body.prompt)
    asked = asked_of(body, state.engine.max_seq_len, len(given), state.settings)

    def submitting(prompt: str | Sequence[int]) -> Submit:
        return lambda params: state.engine.submit_async(
            prompt, params, **_of_drafts(asked), timeout=state.limits.seconds
        )

    texts = [prompt if isinstance(prompt, str) else None for prompt in given]
    return await _answer(state, request, asked, [submitting(prompt) for prompt in given], CompletionAnswer, texts)


async def chat(state: ServerState, request: Request, raw: bytes) -> Response:
    """Answer a conversation."""
    body = body_of(raw, ChatBody)
    state.check_model(body.model)
    style = await run_in_threadpool(lambda: state.engine.answer_style)
    body = for_style(body, style)
    asked = replace(asked_of(body, state.engine.max_seq_len, 1, state.settings), style=style)
    if asked.tools and not await run_in_threadpool(lambda: state.engine.can_call_tools):
        raise HttpRefusal(
            400,
            "tools are not supported by this model: its chat template has no calls in a form that is read here "
            f"({READ})",
            param="tools",
            code="unsupported_parameter",
        )
    if asked.must_call:
        keeps_keys = state.settings.structured_outputs.disable_additional_properties
        form = await run_in_threadpool(
            lambda: state.engine.calls_of(asked.must_call, asked.most_calls, disable_additional_properties=keeps_keys)
        )
        asked = replace(asked, params=replace(asked.params, structured_outputs=form))

    def submit(params: SamplingParams) -> AsyncSubmission:
        return state.engine.submit_chat_async(
            body.messages,
            params,
            tools=asked.tools or None,
            documents=body.documents,
            chat_template_kwargs=body.chat_template_kwargs,
            **_of_drafts(asked),
            timeout=state.limits.seconds,
        )

    return await _answer(state, request, asked, [submit], ChatAnswer)


async def tokenize(request: Request) -> Response:
    """``POST /tokenize``: the token ids of a text, or of a conversation as its template has it."""
    state = ServerState.of(request)
    body = body_of(await read_body(request, state.limits), TokenizeBody)
    state.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise HttpRefusal(400, "give either prompt or messages", param="prompt")
    if body.messages is not None and body.add_special_tokens is not None:
        require_neutral("add_special_tokens", body.add_special_tokens, NEUTRAL_IN_CHAT)

    def ids() -> list[int]:
        try:
            if body.prompt is not None:
                adds_special = body.add_special_tokens is not False
                return state.engine.tokenizer.encode(
                    body.prompt, adds_special=adds_special, max_seq_len=state.engine.max_seq_len, name="prompt"
                )
            return state.engine.chat_prompt(
                body.messages or [], tools=body.tools, chat_template_kwargs=body.chat_template_kwargs
            )[1]
        except UsageError as error:
            raise refusal_of(error) from None

    tokens = await run_in_threadpool(ids)
    return json({"tokens": tokens, "count": len(tokens), "max_model_len": state.engine.max_seq_len})


async def detokenize(request: Request) -> Response:
    """``POST /detokenize``: the text of token ids."""
    state = ServerState.of(request)
    body = body_of(await read_body(request, state.limits), DetokenizeBody)
    state.check_model(body.model)
    size = state.engine.manifest.shapes.vocab_size
    for at, token in enumerate(body.tokens):
        if not 0 <= token < size:
            raise HttpRefusal(400, f"token {token} is not one of 0 to {size - 1}", param=f"tokens[{at}]")
    return json({"prompt": await run_in_threadpool(state.engine.tokenizer.decode, body.tokens)})


async def models(request: Request) -> Response:
    """``GET /v1/models``."""
    state = ServerState.of(request)
    return json({"object": "list", "data": [_listed(state)]})


async def model(request: Request) -> Response:
    """``GET /v1/models/NAME``."""
    state = ServerState.of(request)
    state.check_model(request.path_params["name"])
    return json(_listed(state))


def _listed(state: ServerState) -> dict[str, Any]:
    named = {"id": state.settings.model, "object": "model", "created": state.started, "owned_by": "peagle-compile"}
    return {**named, "max_model_len": state.engine.max_seq_len}


def json(content: Any) -> Response:
    """A response of JSON."""
    return Response(msgspec.json.encode(content), media_type="application/json")


def _prompts(prompt: Any) -> Sequence[str | Sequence[int]]:
    """The prompts of a completion, each a text or token ids. Raises ``HttpRefusal`` for a list of several kinds."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(each) for each in prompt}
    if not kinds:
        raise HttpRefusal(400, "prompt is an empty list: there is nothing to continue", param="prompt")
    if len(kinds) > 1:
        raise HttpRefusal(400, "prompt is a list of texts, of lists of token ids, or of token ids", param="prompt")
    return [prompt] if kinds == {int} else list(prompt)


def _of_drafts(asked: Asked) -> dict[str, Any]:
    return {"num_speculative_tokens": asked.num_speculative_tokens, "draft": asked.draft}


class EventStream(StreamingResponse):
    """A stream of server-sent events; however it ends, what still runs for it is given up."""

    def __init__(self, choices: Choices, events: AsyncIterator[bytes]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},  # a proxy must pass on what it has
        )
        self._choices = choices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._choices:
            await super().__call__(scope, receive, send)


async def _answer(
    state: ServerState,
    request: Request,
    asked: Asked,
    prompts: Sequence[Submit],
    kind: type[Answer],
    texts: Sequence[str | None] = (),
) -> Response:
    """Answer ``prompts``; ``texts`` are theirs where they were given as such."""
    tokenizer, choices = state.engine.tokenizer, Choices(state.metrics, state.limits.seconds)
    await choices.submit(prompts, asked)
    answer = kind(state.settings.model, tokenizer.piece, asked)
    answer.prompt_lengths = [len(ids) for ids in choices.prompts]
    if asked.echoes:
        given = [text for text in texts for _ in range(asked.choices)]
        answer.echoes = [
            Echo(tokenizer.decode(ids) if text is None else text, ids[0])
            for text, ids in zip(given, choices.prompts, strict=True)
        ]
    if asked.streams:
        return EventStream(choices, _events(state, request, choices, answer, asked))
    async with choices:
        await choices.whole(request)
    _log_answer(state, request, choices)
    return json(answer.whole(choices.outputs, choices.runs, choices.prompted))


async def _events(
    state: ServerState, request: Request, choices: Choices, answer: Answer, asked: Asked
) -> AsyncIterator[bytes]:
    """The pieces as server-sent events. What goes wrong on the way is an event too: the status was sent long ago."""
    try:
        async for index, delta in choices.deltas():
            for piece in answer.pieces(index, delta):
                yield event(piece)
        if asked.includes_usage:
            yield event(answer.closing(choices.outputs, choices.prompted))
        _log_answer(state, request, choices)
    except (HttpRefusal, PeagleError) as error:
        request.scope[REFUSAL] = refusal = error if isinstance(error, HttpRefusal) else refusal_of(error)
        yield event(refusal.body())
    yield DONE


def _log_answer(state: ServerState, request: Request, choices: Choices) -> None:
    """Put figures into the line of its request, a tolerance too; log prompts and answers, if that was asked for."""
    request.scope[FIGURES] = figures(choices.outputs, state.engine.load_now.cache_tokens)
    if any(output.acceptance.is_lossy for output in choices.outputs):
        request.scope[TOLERANCE] = max(output.acceptance.tolerance for output in choices.outputs)
    if state.settings.log_prompts:
        decode = state.engine.tokenizer.decode
        for output in choices.outputs:
            log("answer", id=request.scope[REQUEST_ID], prompt=decode(list(output.prompt_token_ids)), text=output.text)
