"""Routes of the OpenAI-compatible API: completions, chat completions, tokenization and models.

https://platform.openai.com/docs/api-reference; docs/serving.md documents the handling of every field.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..answering import answer, json_response
from ..api_face import VERSION_OF_ANTHROPIC, ApiFace, BodyRoute, HeaderRoute
from ..generation import Conversation, answer_style, prompt_ids
from ..openai_error import error_body
from ..problems import HttpRefusal
from ..reading import read_body
from ..settings import model_name
from ..state import ServerState
from .bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, body_of, inert_fields_of
from .chat_answer import ChatAnswer
from .formats import ERROR_FIELDS
from .inert_fields import INERT_IN_CHAT
from .options import ResponseOptions, generation_of, readable, template_fields
from .rendering import CompletionAnswer


async def completions(request: Request) -> Response:
    """``POST /v1/completions``: continue one or more prompts."""
    state = ServerState.of(request)
    return await complete(state, request, await read_body(request, state.limits))


async def chat_completions(request: Request) -> Response:
    """``POST /v1/chat/completions``: answer a conversation."""
    state = ServerState.of(request)
    return await chat(state, request, await read_body(request, state.limits))


async def complete(state: ServerState, request: Request, raw: bytes) -> Response:
    """Continue one or more prompts, each text or token ids."""
    body = body_of(raw, CompletionBody)
    state.check_model(body.model)
    generation = generation_of(body, state.engine.max_seq_len, state.settings)
    tokenizer = state.engine.tokenizer
    renderer = CompletionAnswer(
        state.settings.model, tokenizer.piece, tokenizer.text_bytes_of, ResponseOptions.of(body)
    )
    return await answer(state, request, generation, renderer)


async def chat(state: ServerState, request: Request, raw: bytes) -> Response:
    """Answer a conversation."""
    body = body_of(raw, ChatBody)
    state.check_model(body.model)
    style = await answer_style(state)
    # A body may have so many messages that they would hold up other requests.
    generation = await run_in_threadpool(generation_of, body, state.engine.max_seq_len, state.settings, style)
    tokenizer = state.engine.tokenizer
    renderer = ChatAnswer(state.settings.model, tokenizer.piece, tokenizer.bytes_of, ResponseOptions.of(body))
    return await answer(state, request, generation, renderer)


async def tokenize(request: Request) -> Response:
    """``POST /tokenize``: the token ids of a text, or of a conversation rendered by the chat template."""
    state = ServerState.of(request)
    body = body_of(await read_body(request, state.limits), TokenizeBody)
    state.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise HttpRefusal(400, "send exactly one of prompt and messages", param="prompt")
    if body.messages is not None and body.add_special_tokens is not None:
        INERT_IN_CHAT.require_neutral("add_special_tokens", body.add_special_tokens)

    if body.prompt is None:
        messages = await run_in_threadpool(readable, body.messages or [])
        conversation = Conversation(messages, body.tools or (), **template_fields(body, state.settings))
        tokens = await prompt_ids(state, conversation)
    else:
        encode = partial(
            state.engine.tokenizer.encode,
            body.prompt,
            adds_special=body.add_special_tokens is not False,
            max_seq_len=state.engine.max_seq_len,
            name="prompt",
        )
        tokens = await run_in_threadpool(encode)
    return json_response({"tokens": tokens, "count": len(tokens), "max_model_len": state.engine.max_seq_len})


async def detokenize(request: Request) -> Response:
    """``POST /detokenize``: the text of token ids."""
    state = ServerState.of(request)
    body = body_of(await read_body(request, state.limits), DetokenizeBody)
    state.check_model(body.model)
    size = state.engine.manifest.shapes.vocab_size
    for at, token in enumerate(body.tokens):
        if not 0 <= token < size:
            raise HttpRefusal(400, f"token id {token} is outside the range 0 to {size - 1}", param=f"tokens[{at}]")
    return json_response({"prompt": await run_in_threadpool(state.engine.tokenizer.decode, body.tokens)})


async def models(request: Request) -> Response:
    """``GET /v1/models``: the served model under each of its names."""
    state = ServerState.of(request)
    return json_response({"object": "list", "data": [_listed(state, name) for name in state.settings.models]})


async def model(request: Request) -> Response:
    """``GET /v1/models/NAME``: the served model."""
    state = ServerState.of(request)
    state.check_model(request.path_params["name"])
    return json_response(_listed(state, request.path_params["name"]))


def _listed(state: ServerState, name: str) -> dict[str, Any]:
    entry = {"id": name, "object": "model", "created": state.started, "owned_by": "peagle-compile"}
    root = model_name(state.engine.manifest, state.engine.folder)  # benchmark clients load the tokenizer by this name
    return {**entry, "root": root, "parent": None, "max_model_len": state.engine.max_seq_len}


async def no_vectors(request: Request) -> Response:
    """``POST /v1/embeddings`` and vLLM's ``POST /v1/score``: refused, because engines only generate text."""
    raise HttpRefusal(
        404,
        f"{request.url.path} is not supported: this server generates text, and has neither embeddings nor scores; fix: "
        "use a server for embedding models",
        code="unsupported_endpoint",
    )


OPENAI = ApiFace(
    (
        BodyRoute("/v1/completions", completions, CompletionBody, inert_fields_of(CompletionBody)),
        BodyRoute("/v1/chat/completions", chat_completions, ChatBody, inert_fields_of(ChatBody)),
        HeaderRoute("/v1/models", models, VERSION_OF_ANTHROPIC, have=False),
        HeaderRoute("/v1/models/{name:path}", model, VERSION_OF_ANTHROPIC, have=False),
        BodyRoute("/tokenize", tokenize, TokenizeBody, inert_fields_of(TokenizeBody)),
        BodyRoute("/detokenize", detokenize, DetokenizeBody, inert_fields_of(DetokenizeBody)),
        Route("/v1/embeddings", no_vectors, methods=["POST"], include_in_schema=False),
        Route("/v1/score", no_vectors, methods=["POST"], include_in_schema=False),
    ),
    error_body,
    ERROR_FIELDS,
)
