"""Routes of Anthropic's Messages API.

https://docs.anthropic.com/en/api/messages; docs/serving.md documents the handling of every field. The headers
``anthropic-version`` and ``anthropic-beta`` are accepted with any value; the first selects this API for
``/v1/models``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ..answering import answer, json_response
from ..api_face import VERSION_OF_ANTHROPIC, ApiFace, BodyRoute, HeaderRoute
from ..generation import answer_style, prompt_ids
from ..reading import read_body
from ..state import ServerState
from .bodies import INERT, CountBody, MessagesBody, body_of
from .conversations import conversation_of, generation_of, own_form, shows_thoughts
from .rendering import MessageAnswer, error_body


async def messages(request: Request) -> Response:
    """``POST /v1/messages``: answer a conversation."""
    state = ServerState.of(request)
    body = body_of(await read_body(request, state.limits), MessagesBody)
    state.check_model(body.model)
    # A body may have so many blocks that they would hold up other requests.
    generation = await run_in_threadpool(generation_of, body, await answer_style(state), state.settings)
    renderer = MessageAnswer(state.settings.model, shows_thoughts=shows_thoughts(body))
    return await answer(state, request, generation, renderer)


async def count_tokens(request: Request) -> Response:
    """``POST /v1/messages/count_tokens``: the number of prompt tokens of a conversation."""
    state = ServerState.of(request)
    body = body_of(await read_body(request, state.limits), CountBody)
    state.check_model(body.model)
    conversation = await run_in_threadpool(conversation_of, body, await answer_style(state))
    ids = await prompt_ids(state, conversation, is_structured=own_form(body) is not None)
    return json_response({"input_tokens": len(ids)})


async def models(request: Request) -> Response:
    """``GET /v1/models``: the served model under each of its names, on one page."""
    state = ServerState.of(request)
    is_other_page = any(name in request.query_params for name in ("before_id", "after_id"))
    names = () if is_other_page else state.settings.models
    first, last = (names[0], names[-1]) if names else (None, None)
    data = [_listed(state, name) for name in names]
    return json_response({"data": data, "first_id": first, "last_id": last, "has_more": False})


async def model(request: Request) -> Response:
    """``GET /v1/models/NAME``: the served model."""
    state = ServerState.of(request)
    state.check_model(request.path_params["name"])
    return json_response(_listed(state, request.path_params["name"]))


def _listed(state: ServerState, name: str) -> dict[str, Any]:
    started = datetime.fromtimestamp(state.started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    max_tokens = state.engine.max_seq_len
    entry = {"type": "model", "id": name, "display_name": name, "created_at": started}
    return {**entry, "lifecycle": "active", "max_input_tokens": max_tokens, "max_tokens": max_tokens}


ANTHROPIC = ApiFace(
    (
        BodyRoute("/v1/messages", messages, MessagesBody, INERT),
        BodyRoute("/v1/messages/count_tokens", count_tokens, CountBody, INERT),
        HeaderRoute("/v1/models", models, VERSION_OF_ANTHROPIC, have=True),
        HeaderRoute("/v1/models/{name:path}", model, VERSION_OF_ANTHROPIC, have=True),
    ),
    error_body,
    root="/v1/messages/",
)
