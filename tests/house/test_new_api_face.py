"""A new API requires one module and one line: an API in Ollama's shape, added to an unchanged server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from peagle.engines import Engine
from peagle.engines.serving.answering import answer
from peagle.engines.serving.api_face import ApiFace
from peagle.engines.serving.choices import Choices
from peagle.engines.serving.faces import FACES
from peagle.engines.serving.generation import Conversation, Generation, sampling_params
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.reading import parse_body, read_body
from peagle.engines.serving.rendering import Renderer, ReportedTokens
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import Limits, ServerSettings
from peagle.engines.serving.speculative_config import DefaultDrafts
from peagle.engines.serving.state import ServerState
from peagle.engines.serving.usage import total_acceptance
from tests.engines.serving.calls import call

# -------------------------------------------------------------------------------------------------- the new face


class GenerateOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The options of a body."""

    num_predict: int = 16
    temperature: float = 0.8
    seed: int | None = None


class GenerateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``POST /api/generate`` and, with messages, ``POST /api/chat``."""

    model: str
    prompt: str = ""
    messages: list[dict[str, Any]] | None = None
    stream: bool = True
    options: GenerateOptions = msgspec.field(default_factory=GenerateOptions)


class OllamaResponse(Renderer):
    """JSON objects, one on each line of a stream."""

    stream_type = "application/x-ndjson"

    def __init__(self, model: str) -> None:
        self._model = model

    def body(self, answers: Sequence[ReportedTokens], choices: Choices) -> dict[str, Any]:
        return {**self._said(answers[0].text), **self._end(choices)}

    def pieces(self, tokens: ReportedTokens) -> Iterator[bytes]:
        if tokens.text:
            yield self._line({**self._said(tokens.text), "done": False})

    def closing(self, choices: Choices) -> Iterator[bytes]:
        yield self._line({**self._said(""), **self._end(choices)})

    def failure(self, refusal: HttpRefusal) -> Iterator[bytes]:
        yield self._line(ollama_error(refusal))

    def _said(self, text: str) -> dict[str, Any]:
        return {"model": self._model, "response": text}

    @staticmethod
    def _end(choices: Choices) -> dict[str, Any]:
        output, drafts = choices.outputs[0], total_acceptance(choices.outputs)
        counts = {"prompt_eval_count": choices.prompted, "eval_count": len(output.token_ids)}
        return {"done": True, "done_reason": output.finish_reason, **counts, "drafted": drafts.drafted}

    @staticmethod
    def _line(content: Any) -> bytes:
        return msgspec.json.encode(content) + b"\n"


def ollama_error(refusal: HttpRefusal) -> dict[str, Any]:
    """Errors of Ollama's API are a text."""
    return {"error": refusal.message}


async def generate(request: Request) -> Response:
    state = ServerState.of(request)
    body = parse_body(await read_body(request, state.limits), GenerateBody)
    state.check_model(body.model)
    options = body.options
    fields = {"temperature": options.temperature, "max_tokens": options.num_predict, "seed": options.seed}
    generation = Generation(
        [body.prompt] if body.messages is None else Conversation(body.messages),
        sampling_params(fields, state.settings),
        streams=body.stream,
        requested_tokens=("num_predict", options.num_predict),
    )
    return await answer(state, request, generation, OllamaResponse(state.settings.model))


OLLAMA = ApiFace(
    (Route("/api/generate", generate, methods=["POST"]), Route("/api/chat", generate, methods=["POST"])), ollama_error
)

# ----------------------------------------------------------------------------------------------------- its server

PROMPT = "def f(x):\n"
MESSAGES = [{"role": "user", "content": "Name a colour."}]


@pytest.fixture(scope="module")
def ollama_server(served_engine: Engine) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FACES, "ollama", OLLAMA)  # the one line
        settings = ServerSettings("demo", limits=Limits(body_bytes=1 << 16), drafts=DefaultDrafts(3))
        server = Server(served_engine, settings, port=0)
    server.start()
    yield server
    server.stop(immediately=True)
    assert server.wait(10)


def _ask(server: Server, path: str = "/api/generate", **fields: Any) -> tuple[int, dict[str, str], bytes]:
    return call(server, "POST", path, {"model": "demo", **fields})


def _openai_text(server: Server, path: str, **fields: Any) -> str:
    status, _, content = call(server, "POST", path, {"model": "demo", **fields})
    assert status == 200, content
    choice = json.loads(content)["choices"][0]
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


def _count(server: Server, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", call(server, "GET", "/metrics")[2].decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_new_face_answers_with_the_text_of_the_openai_endpoint(ollama_server: Server, temperature: float) -> None:
    status, headers, content = _ask(
        ollama_server,
        prompt=PROMPT,
        stream=False,
        options={"num_predict": 24, "temperature": temperature, "seed": 7},
    )
    told = json.loads(content)
    assert (status, headers["content-type"], told["done"]) == (200, "application/json", True)
    assert told["response"] == _openai_text(
        ollama_server, "/v1/completions", prompt=PROMPT, max_tokens=24, temperature=temperature, seed=7
    )
    assert told["eval_count"] == 24
    assert told["drafted"] > 0  # as the server says of requests that say nothing of drafts


def test_a_new_face_streams_in_its_own_form(ollama_server: Server) -> None:
    options = {"num_predict": 24, "temperature": 0.0}
    whole = json.loads(_ask(ollama_server, prompt=PROMPT, stream=False, options=options)[2])
    _, headers, content = _ask(ollama_server, prompt=PROMPT, options=options)
    *pieces, last = [json.loads(line) for line in content.splitlines()]
    assert headers["content-type"].startswith("application/x-ndjson")
    assert len(pieces) > 1
    assert "".join(each["response"] for each in pieces) == whole["response"]
    assert (last["done"], last["eval_count"]) == (True, whole["eval_count"])


def test_a_new_face_answers_conversations(ollama_server: Server) -> None:
    options = {"num_predict": 12, "temperature": 0.0}
    told = json.loads(_ask(ollama_server, "/api/chat", messages=MESSAGES, stream=False, options=options)[2])
    assert told["response"] == _openai_text(
        ollama_server, "/v1/chat/completions", messages=MESSAGES, max_tokens=12, temperature=0.0
    )


@pytest.mark.parametrize(
    ("method", "fields", "status", "why"),
    [
        ("POST", {"options": {"num_predict": 10**6}}, 400, "num_predict is 1000000"),
        ("POST", {"options": {"temperature": -1}}, 400, "temperature"),
        ("POST", {"prompt": ""}, 400, "prompt"),
        ("POST", {"colour": 1}, 400, "unknown field `colour`"),
        ("POST", {"model": "other"}, 404, "model other not found"),
        ("GET", {}, 405, "does not support GET"),
    ],
)
def test_a_new_face_refuses_in_its_own_form_and_is_counted(
    ollama_server: Server, method: str, fields: dict[str, Any], status: int, why: str
) -> None:
    series = f'vllm:request_refused_total{{model_name="demo",status="{status}"}}'
    before = _count(ollama_server, series)
    found, _, content = call(ollama_server, method, "/api/generate", {"model": "demo", "prompt": PROMPT, **fields})
    error = json.loads(content)
    assert (found, [*error]) == (status, ["error"])
    assert isinstance(error["error"], str)
    assert why in error["error"]
    assert _count(ollama_server, series) == before + (method == "POST")


def test_a_stream_of_a_new_face_that_fails_ends_in_its_own_form(served_engine: Engine) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FACES, "ollama", OLLAMA)
        server = Server(served_engine, ServerSettings("demo", limits=Limits(seconds=0.01)), port=0)
    server.start()
    try:
        content = _ask(server, prompt=PROMPT, options={"num_predict": 400})[2]
    finally:
        server.stop(immediately=True)
    assert server.wait(10)
    assert "--request-timeout" in json.loads(content.splitlines()[-1])["error"]


def test_the_limits_and_counters_of_a_server_hold_for_a_new_face(ollama_server: Server) -> None:
    names = [
        f'vllm:{name}{{model_name="demo"}}'
        for name in ("prompt_tokens_total", "generation_tokens_total", "e2e_request_latency_seconds_count")
    ]
    before = [_count(ollama_server, name) for name in names]
    told = json.loads(_ask(ollama_server, prompt=PROMPT, stream=False, options={"num_predict": 5})[2])
    after = [_count(ollama_server, name) for name in names]
    assert [now - then for now, then in zip(after, before, strict=True)] == [told["prompt_eval_count"], 5, 1]
    status, _, content = _ask(ollama_server, prompt="a" * (1 << 16))
    assert status == 413
    assert "--max-body-bytes" in json.loads(content)["error"]


def test_paths_of_other_faces_keep_their_own_errors(ollama_server: Server) -> None:
    for path in ("/v1/completions", "/invocations"):
        status, _, content = call(ollama_server, "POST", path, {"prompt": PROMPT, "colour": 1})
        assert (status, json.loads(content)["error"]["param"]) == (400, "colour")
    status, _, content = call(ollama_server, "GET", "/api/nothing")
    assert (status, json.loads(content)["error"]["type"]) == (404, "not_found_error")
