"""Requests as they are passed to replicas."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from fleet.question import BLOCK, GENERATES, Question
from starlette.requests import Request

from peagle.engines.serving.api_face import BodyRoute
from peagle.engines.serving.faces import FACES


def _question(path: str, body: bytes, query: bytes = b"") -> Question:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-length", b"9"), (b"a", b"b")]}
    return asyncio.run(Question.of(Request({**scope, "query_string": query, "server": ("x", 1)}, receive)))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "def f"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
        ("/v1/responses", {"input": "hi"}),
        ("/invocations", {"prompt": "def f"}),
    ],
)
def test_a_request_of_every_api_gets_a_seed_and_a_prompt_to_route_by(path: str, fields: dict[str, Any]) -> None:
    question = _question(path, json.dumps(fields).encode())
    assert {**fields, "seed": question.fields["seed"]} == question.fields
    assert question.prompt
    assert dict(question.headers) == {b"a": b"b"}  # the length may differ now


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": "def f"}),
        ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}),  # the chat page asks so before each question
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses/input_tokens", {"input": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
def test_a_request_that_generates_nothing_gets_no_seed(path: str, fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    question = _question(path, body)
    assert question.body == body
    assert question.prompt


def test_every_path_that_gets_a_seed_accepts_one() -> None:
    routes = {route.path: route for face in FACES.values() for route in face.routes}
    assert routes.keys() >= GENERATES
    for route in map(routes.__getitem__, GENERATES):
        assert not isinstance(route, BodyRoute) or "seed" in route.body.__struct_fields__


def test_a_seed_of_the_client_is_kept() -> None:
    body = json.dumps({"prompt": "def f", "seed": 7}).encode()
    assert _question("/v1/completions", body).body == body


def test_a_query_is_passed_on() -> None:
    assert _question("/v1/responses/resp_1/input_items", b"", b"after=item_3&limit=2").query == b"after=item_3&limit=2"


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[1]", b'{"colour": 1}', b'{"prompt": ""}'])
def test_errors_of_a_replica_are_passed_on_unchanged(body: bytes) -> None:
    assert _question("/v1/completions", body).body == body


def test_prompts_are_compared_in_whole_blocks() -> None:
    def beginnings(prompt: str) -> list[int]:
        return Question("POST", "/v1/completions", (), b"", prompt=prompt).beginnings

    long = "x" * BLOCK + "y" * BLOCK
    assert beginnings(long + "z") == beginnings(long + "a") == beginnings(long)
    assert beginnings(long)[:1] == beginnings("x" * BLOCK) != beginnings("y" * BLOCK)
    assert len(beginnings("short")) == 1
    assert beginnings("") == []


def test_a_stream_is_continued_only_by_the_same_engine() -> None:
    fresh = Question("POST", "/v1/completions", (), b"")
    assert fresh.fits("e1")
    assert fresh.fits(None)
    begun = replace(fresh, engine="e1")
    assert begun.fits("e1")
    assert not begun.fits("e2")
    assert not begun.fits(None)
