"""The front: it accepts HTTP requests, forwards them to replicas, and speaks for all replicas together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from ray import serve
from ray.exceptions import ActorDiedError, ActorUnavailableError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Message

from fleet.metrics import Report, comparison, merged
from fleet.question import MISDIRECTED, Question
from fleet.streams import Api, Broken, api_of, events

PAUSES = (0.5, 1.0, 2.0, 4.0, 0.0)  # seconds after each try of a request: Ray notices a death a little later
SECONDS = 20.0  # for all replicas to report
GONE = (ActorDiedError, ActorUnavailableError)


class Front:
    """Accepts HTTP requests and forwards them to replicas."""

    def __init__(self, deployment: str, application: str) -> None:
        self._everyone = serve.get_deployment_handle(deployment, application)
        self._replicas = self._everyone.options(stream=True)
        self._own = {"/metrics": self._metrics, "/fleet": self._fleet}

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        if request.method == "GET" and (own := self._own.get(request.url.path)):
            return await own()
        question = await Question.of(request)
        if question.fields.get("stream") is True:
            return await self._streamed(question)
        for pause in PAUSES:
            try:
                messages = [message async for message in self._replicas.answer.remote(question)]
                break
            except GONE:
                await asyncio.sleep(pause)
        else:
            return _unavailable()
        body = b"".join(message.get("body", b"") for message in messages)
        return Response(body, messages[0]["status"], _headers(messages[0]))

    async def _streamed(self, question: Question) -> Response:
        api = api_of(question.path)
        messages = self._messages(question, api)
        try:
            start = await anext(messages)
            if start["status"] != 200:
                body = b"".join([message.get("body", b"") async for message in messages])
                return Response(body, start["status"], _headers(start))
        except Broken:
            return _unavailable()
        return StreamingResponse(events(messages, api), 200, _headers(start))

    async def _messages(self, question: Question, api: Api) -> AsyncIterator[Message]:
        """Yield the messages of one replica; if it dies, those of the next replica from the start.

        Raises ``Broken`` if no replica can continue.
        """
        has_begun = False
        for pause in PAUSES:
            headers: dict[str, str] = {}
            try:
                async for message in self._replicas.answer.remote(question):
                    if message["type"] == "http.response.start":
                        if has_begun and message["status"] != 200:
                            raise Broken(f"its replica died, and {_refusal(message['status'])}")
                        has_begun, headers = True, _headers(message)
                    elif message.get("body"):
                        question = replace(question, engine=headers["x-engine"])
                    yield message
                return
            except GONE:
                if question.engine and not api.resumes:
                    raise Broken("its replica died") from None
                if "x-replica" in headers:
                    question = replace(question, avoid=(*question.avoid, headers["x-replica"]))
                await asyncio.sleep(pause)
        raise Broken("no replica answers")

    async def _metrics(self) -> Response:
        """``GET /metrics``: the metrics of all replicas."""
        return PlainTextResponse(merged(dict(await self._asked("metrics"))), media_type="text/plain; version=0.0.4")

    async def _fleet(self) -> Response:
        """``GET /fleet``: the replicas, their drafters, and how these compare."""
        reports: list[Report] = await self._asked("report")
        return JSONResponse(comparison(reports))

    async def _asked(self, method: str) -> list[Any]:
        """Return the answers of all replicas but those that end meanwhile."""
        answers = await self._everyone.broadcast(method).results_async(timeout_s=SECONDS, return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, BaseException)]


def _refusal(status: int) -> str:
    if status == MISDIRECTED:
        return "no other can continue it with the same engine"
    return f"the next one refused it with status {status}"


def _headers(start: Message) -> dict[str, str]:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]}
    return {name: value for name, value in headers.items() if name not in {"content-length", "transfer-encoding"}}


def _unavailable() -> Response:
    problem = {"message": "no replica answers", "type": "server_error", "param": None, "code": None}
    return Response(json.dumps({"error": problem}), 503, {"Retry-After": "5"}, "application/json")
