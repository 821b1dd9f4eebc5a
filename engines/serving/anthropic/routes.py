"""Routes of Anthropic's Messages API.

https://docs.anthropic.com/en/api/messages; docs/serving.md documents the handling of every field. The headers
``anthropic-version`` and ``anthropic-beta`` are accepted with any value.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ..answering import answer, json_response
from ..api_face import ApiFace, BodyRoute
from ..generation import answer_style, prompt_ids
from ..reading import read_body
from ..state import ServerState
from .bodies import INERT, CountBody, MessagesBody, body_of
from .conversations import conversation_of, generation_of, shows_thoughts
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
    shows_thoughts(body)
    conversation = await run_in_threadpool(conversation_of, body, await answer_style(state))
    return json_response({"input_tokens": len(await prompt_ids(state, conversation))})


ANTHROPIC = ApiFace(
    (
        BodyRoute("/v1/messages", messages, MessagesBody, INERT),
        BodyRoute("/v1/messages/count_tokens", count_tokens, CountBody, INERT),
    ),
    error_body,
)
