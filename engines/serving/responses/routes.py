"""Routes of OpenAI's Responses API.

https://platform.openai.com/docs/api-reference/responses; docs/serving.md documents the handling of every field.
"""

from __future__ import annotations

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ....plugins.errors import PeagleError
from ..access import REFUSAL
from ..answering import answer, json_response
from ..api_face import ApiFace, BodyRoute
from ..generation import Conversation, Generation, answer_style, prompt_ids
from ..openai_error import error_body
from ..problems import CONTEXT_LENGTH_EXCEEDED, HttpRefusal
from ..reading import read_body
from ..state import ServerState
from .bodies import INERT, ResponsesBody, body_of
from .conversations import RENAMED, Item, conversation_of, generation_of, is_structured
from .references import resolved, responses_of
from .rendering import ResponseAnswer, StoredResponse, listed_items

MAX_ITEMS = 100  # of a page


async def create(request: Request) -> Response:
    """``POST /v1/responses``: answer text or items."""
    state = ServerState.of(request)
    body = body_of(await read_body(request, state.limits))
    state.check_model(body.model)
    style = await answer_style(state)
    tokenizer = state.engine.tokenizer

    def count(text: str) -> int:
        return len(tokenizer.encode(text, adds_special=False))

    def prepared() -> tuple[Generation, ResponseAnswer]:
        before = _resolved(body, state)
        generation = generation_of(body, before, state.engine.max_seq_len, style, state.settings)
        return generation, ResponseAnswer(body, before, state.settings.model, count, state.answers.put)

    # A body may have so many items that they would hold up other requests.
    generation, renderer = await run_in_threadpool(prepared)
    try:
        return await answer(state, request, generation, renderer)
    except (HttpRefusal, PeagleError) as error:
        refusal = RESPONSES.refusal_of(error)
        if not generation.streams or refusal.code != CONTEXT_LENGTH_EXCEEDED:
            raise
        # Agents shorten the conversation only if they read this code in an event.
        request.scope[REFUSAL] = refusal
        state.metrics.refuse(refusal.status)
        return Response(b"".join(renderer.refused(refusal)), media_type=renderer.stream_type)


async def count_input(request: Request) -> Response:
    """``POST /v1/responses/input_tokens``: the number of prompt tokens of a response."""
    state = ServerState.of(request)
    body = body_of(await read_body(request, state.limits))
    state.check_model(body.model)
    style = await answer_style(state)

    def conversation() -> Conversation:
        return conversation_of(body, _resolved(body, state), style)

    tokens = await prompt_ids(state, await run_in_threadpool(conversation), is_structured=is_structured(body))
    return json_response({"object": "response.input_tokens", "input_tokens": len(tokens)})


async def compact(request: Request) -> Response:
    """``POST /v1/responses/compact``: refused, because only OpenAI's models read compacted items."""
    del request
    raise HttpRefusal(
        404,
        "this server does not compact conversations; fix: send the conversation as input, and shorten it if it is "
        "too long",
        code="unsupported_endpoint",
    )


async def retrieve(request: Request) -> Response:
    """``GET /v1/responses/ID``: a stored response."""
    if request.query_params.get("stream") == "true":
        raise HttpRefusal(
            400,
            "a stored response cannot be streamed; fix: remove stream",
            param="stream",
            code="unsupported_parameter",
        )
    identity = request.path_params["identity"]
    stored = _stored(ServerState.of(request), identity)
    if stored is None:
        raise _not_found(identity)
    return json_response(stored.response)


async def delete(request: Request) -> Response:
    """``DELETE /v1/responses/ID``: forget a stored response."""
    identity = request.path_params["identity"]
    if not ServerState.of(request).answers.delete(identity):
        raise _not_found(identity)
    return json_response({"id": identity, "object": "response", "deleted": True})


async def input_items(request: Request) -> Response:
    """``GET /v1/responses/ID/input_items``: the conversation before a stored response, latest item first by default."""
    identity, query = request.path_params["identity"], request.query_params
    stored = _stored(ServerState.of(request), identity)
    if stored is None:
        raise _not_found(identity)
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= MAX_ITEMS):
        raise HttpRefusal(400, f"limit must be an integer from 1 to {MAX_ITEMS}", param="limit")
    if order not in ("asc", "desc"):
        raise HttpRefusal(400, "order must be asc or desc", param="order")
    items = listed_items(stored, identity)
    items = items if order == "asc" else items[::-1]
    if after is not None:
        at = next((at for at, each in enumerate(items) if each["id"] == after), None)
        if at is None:
            raise HttpRefusal(400, f"after: this response has no item with the id {after[:100]}", param="after")
        items = items[at + 1 :]
    page = items[: int(limit)]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return json_response({"object": "list", "data": page, **ends, "has_more": len(items) > len(page)})


async def cancel(request: Request) -> Response:
    """``POST /v1/responses/ID/cancel``: refused, because no response runs in the background."""
    identity = request.path_params["identity"]
    if _stored(ServerState.of(request), identity) is None:
        raise _not_found(identity)
    raise HttpRefusal(
        400,
        f"response {identity[:100]} cannot be canceled: it is complete, and this server runs no responses in the "
        "background; fix: to cancel a response, close the connection of its request",
        code="unsupported_parameter",
    )


def _items_before(state: ServerState, identity: str | None) -> list[Item]:
    """Return the items of the conversation that a response ended."""
    if identity is None:
        return []
    stored = _stored(state, identity)
    if stored is None:
        raise HttpRefusal(
            400,
            f"previous response {identity[:100]} not found: this server keeps only the latest responses, in memory, "
            "and no responses with store: false; fix: send the whole conversation as input, or start the server with "
            "a larger --response-store-bytes",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    items: list[Item] = msgspec.json.decode(stored.items)
    return items


def _resolved(body: ResponsesBody, state: ServerState) -> list[Item]:
    """Return the items before those of a body, and replace the references in its input by the items.

    All are items of stored responses.
    """
    before = _items_before(state, body.previous_response_id)
    if not isinstance(body.input, str):
        responses = responses_of(body.input, state.answers.get)
        body.input = resolved(body.input, responses, state.limits.body_bytes)
    return before


def _stored(state: ServerState, identity: str) -> StoredResponse | None:
    content = state.answers.get(identity)
    return None if content is None else msgspec.json.decode(content, type=StoredResponse)


def _not_found(identity: str) -> HttpRefusal:
    return HttpRefusal(404, f"response {identity[:100]} not found", code="response_not_found")


RESPONSES = ApiFace(
    (
        BodyRoute("/v1/responses", create, ResponsesBody, INERT),
        BodyRoute("/v1/responses/input_tokens", count_input, ResponsesBody, INERT),
        Route("/v1/responses/compact", compact, methods=["POST"], include_in_schema=False),
        Route("/v1/responses/{identity}", retrieve, methods=["GET"]),
        Route("/v1/responses/{identity}", delete, methods=["DELETE"]),
        Route("/v1/responses/{identity}/input_items", input_items, methods=["GET"]),
        Route("/v1/responses/{identity}/cancel", cancel, methods=["POST"]),
    ),
    error_body,
    frozenset({"tool_choice", "text"}),
    {**RENAMED, "text": "text.format"},
)
