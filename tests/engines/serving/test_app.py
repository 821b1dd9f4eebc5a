"""Paths, access and limits, over the wire."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from peagle.engines import Engine, SamplingParams
from peagle.engines.policy import misfit
from peagle.engines.serving.access import JsonLines
from peagle.engines.serving.app import create_app
from peagle.engines.serving.faces import FACES
from peagle.engines.serving.health import _canary, ping
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import Limits, ServerSettings
from peagle.engines.serving.speculative_config import DefaultDrafts
from peagle.engines.serving.state import ServerState
from tests.engines.serving.calls import call, connect, error_of
from tests.fixtures.servers import MODEL

PROMPT = "def f(x):\n"


@pytest.fixture(scope="module")
def locked_server(served_engine: Engine) -> Iterator[Server]:
    """It has two keys, a short time for an answer, and plain decoding where nothing is said."""
    settings = ServerSettings(
        MODEL, api_keys=("first", "second"), limits=Limits(seconds=0.01), drafts=DefaultDrafts(num_speculative_tokens=0)
    )
    server = Server(served_engine, settings, port=0)
    server.start()
    yield server
    server.stop(at_once=True)
    assert server.wait(10)


def test_text_and_tokens_turn_into_each_other(server: Server, served_engine: Engine) -> None:
    _, _, content = call(server, "POST", "/tokenize", {"prompt": PROMPT})
    told = json.loads(content)
    assert told["tokens"] == served_engine.tokenizer.encode(PROMPT)
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == served_engine.max_seq_len
    _, _, content = call(server, "POST", "/detokenize", {"tokens": told["tokens"]})
    assert json.loads(content) == {"prompt": PROMPT}


def test_a_conversation_is_tokenized_as_its_template_has_it(server: Server, served_engine: Engine) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    _, _, content = call(server, "POST", "/tokenize", {"messages": messages})
    assert json.loads(content)["tokens"] == served_engine.chat_prompt(messages)[1]


def test_special_tokens_are_added_by_default(server: Server, served_engine: Engine) -> None:
    known = served_engine.tokenizer

    def tokens(**fields: Any) -> Any:
        return json.loads(call(server, "POST", "/tokenize", fields)[2])["tokens"]

    for adds in (True, None):
        assert tokens(prompt=PROMPT, add_special_tokens=adds) == known.encode(PROMPT)
    assert tokens(prompt=PROMPT, add_special_tokens=False) == known.encode(PROMPT, adds_special=False)
    messages = [{"role": "user", "content": PROMPT}]
    assert tokens(messages=messages, add_special_tokens=False) == served_engine.chat_prompt(messages)[1]
    status, _, content = call(server, "POST", "/tokenize", {"messages": messages, "add_special_tokens": True})
    assert (status, error_of(content)["param"]) == (400, "add_special_tokens")


def test_a_conversation_is_tokenized_with_its_tools(calling_server: Server, calling_engine: Engine) -> None:
    messages, tools = [{"role": "user", "content": PROMPT}], [{"type": "function", "function": {"name": "f"}}]
    body = {"messages": messages, "tools": tools, "chat_template_kwargs": {"a": 1}}
    found = json.loads(call(calling_server, "POST", "/tokenize", body)[2])["tokens"]
    assert found == calling_engine.chat_prompt(messages, tools=tools)[1]


def test_a_conversation_is_tokenized_as_it_is_continued(server: Server, served_engine: Engine) -> None:
    messages = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "    return"}]
    for options in ({"continue_final_message": True}, {"add_generation_prompt": False}):
        found = json.loads(call(server, "POST", "/tokenize", {"messages": messages, **options})[2])["tokens"]
        assert found == served_engine.chat_prompt(messages, **options)[1]  # type: ignore[arg-type]


def test_a_template_of_a_request_is_used_if_the_server_trusts_it(server: Server, served_engine: Engine) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "chat_template": "{{ messages[0].content }}!"}
    trusting = Server(served_engine, ServerSettings(MODEL, trusts_request_templates=True), port=0)
    trusting.start()
    try:
        found = json.loads(call(trusting, "POST", "/tokenize", body)[2])["tokens"]
        assert found == served_engine.tokenizer.encode(f"{PROMPT}!")
        asked = {**body, "max_tokens": 4, "return_token_ids": True}
        assert json.loads(call(trusting, "POST", "/v1/chat/completions", asked)[2])["prompt_token_ids"] == found
        status, _, content = call(trusting, "POST", "/v1/chat/completions", {**body, "chat_template": "{% if %}"})
        assert (status, error_of(content)["param"]) == (400, "chat_template")
    finally:
        trusting.stop(at_once=True)
        assert trusting.wait(10)
    assert call(server, "POST", "/tokenize", body)[0] == 400


def test_root_path_is_no_way_around_the_key(served_engine: Engine) -> None:
    server = Server(served_engine, ServerSettings(MODEL, api_keys=("k",), root_path="/llm"), port=0)
    server.start()
    try:
        for prefix in ("", "/llm"):
            assert call(server, "GET", f"{prefix}/health")[0] == 200
            assert call(server, "GET", f"{prefix}/v1/models")[0] == 401
            assert call(server, "GET", f"{prefix}/v1/models", headers={"x-api-key": "k"})[0] == 200
        assert call(server, "GET", "/llm/llm/v1/models", headers={"x-api-key": "k"})[0] == 404
        assert call(server, "GET", "/llmv1/models", headers={"x-api-key": "k"})[0] == 404
    finally:
        server.stop(at_once=True)
        assert server.wait(10)


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": []}, {"tokens": [0]}])
def test_tokenize_input_is_given_once(server: Server, body: Any) -> None:
    assert call(server, "POST", "/tokenize", body)[0] == 400


@pytest.mark.parametrize("tokens", [[-1], [10**9], [2**70], ["a"]])
def test_tokens_that_are_none_are_refused(server: Server, tokens: Any) -> None:
    assert call(server, "POST", "/detokenize", {"tokens": tokens})[0] == 400


def test_health_has_a_token_written(server: Server) -> None:
    assert call(server, "GET", "/health")[0] == 200
    assert call(server, "GET", "/ping")[::2] == (200, b"")


def test_busy_server_is_healthy_while_tokens_flow(served_engine: Engine) -> None:
    state: ServerState = create_app(served_engine, ServerSettings(MODEL)).state.server
    params = SamplingParams(max_tokens=300, ignore_eos=True)
    running = [served_engine.submit("a", params) for _ in range(3 + 8)]  # slots, and places to wait

    async def asked() -> None:
        canary = _canary(state)
        await asyncio.sleep(0.05)
        assert not canary.done()
        state.metrics.note_token()
        await canary

    asyncio.run(asked())
    for submission in running:
        submission.cancel()


def test_a_ping_is_answered_soon_by_when_the_last_token_came(
    served_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(served_engine, ServerSettings(MODEL))
    state: ServerState = app.state.server
    request = Request({"type": "http", "app": app, "method": "GET", "path": "/ping", "headers": []})
    monkeypatch.setattr("peagle.engines.serving.health.PING_SECONDS", 0.01)
    goes_on = asyncio.Event()

    async def slowly(state: ServerState) -> None:
        await goes_on.wait()
        raise HttpRefusal(503, "generated no token")

    async def asked() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("peagle.engines.serving.health._write_a_token", slowly)
            with pytest.raises(HttpRefusal, match="has not generated a token yet"):
                await ping(request)
            first = state.canary
            state.metrics.last_token = time.monotonic() - 10
            assert (await ping(request)).status_code == 200
            assert state.canary is first  # pings do not add up
            goes_on.set()
            await asyncio.sleep(0)
            with pytest.raises(HttpRefusal, match="generated no token"):
                await ping(request)
        monkeypatch.setattr("peagle.engines.serving.health.PING_SECONDS", 20.0)
        assert (await ping(request)).status_code == 200  # the engine's own answer

    asyncio.run(asked())


def test_an_engine_that_has_failed_is_not_healthy(served_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short a time ago a token was written."""
    server = Server(served_engine, ServerSettings(MODEL), port=0)
    server.start()
    assert call(server, "GET", "/health")[0] == call(server, "GET", "/ping")[0] == 200
    monkeypatch.setattr(served_engine._loop, "_failure", MemoryError("the device is gone"))
    for path in ("/health", "/ping"):
        status, _, content = call(server, "GET", path)
        assert status == 503
        assert "the device is gone" in error_of(content)["message"]
    assert call(server, "POST", "/v1/completions", {"prompt": PROMPT})[0] == 503
    monkeypatch.undo()
    assert call(server, "GET", "/health")[0] == 200
    server.stop(at_once=True)
    assert server.wait(10)


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(
    server: Server, served_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, text = served_engine.tokenizer, "a" * 60_000
    assert tokenizer._limits.characters
    monkeypatch.setattr(tokenizer, "_limits", replace(tokenizer._limits, characters=8))
    monkeypatch.setattr(tokenizer, "_encoded", lambda *_, **__: pytest.fail("it was encoded"))
    messages = [{"role": "user", "content": text}]
    bodies: dict[str, list[dict[str, Any]]] = {
        "/v1/completions": [{"prompt": text}],
        "/v1/chat/completions": [{"messages": messages}],
        "/tokenize": [{"prompt": text}, {"messages": messages}],
        "/invocations": [{"prompt": text}, {"messages": messages}],
    }
    for path, each in bodies.items():
        for body in each:
            status, _, content = call(server, "POST", path, body)
            assert status == 400, path
            told = error_of(content)
            assert f"maximum context length is {served_engine.max_seq_len} tokens" in told["message"]
            assert told["param"] in ("prompt", "messages")


def test_path_with_a_slash_is_not_found(server: Server) -> None:
    status, headers, _ = call(server, "POST", "/v1/completions/", {}, {"Host": "localhost"})
    assert status == 404
    assert "location" not in headers


def test_metrics_count_requests_tokens_and_drafts(server: Server) -> None:
    def told() -> dict[str, float]:
        text = call(server, "GET", "/metrics")[2].decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}

    before = told()
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    usage = json.loads(call(server, "POST", "/v1/completions", body)[2])["usage"]
    after = told()

    def grown(name: str, labels: str = "") -> float:
        key = f'vllm:{name}{{{labels}model_name="{MODEL}"}}'
        return after[key] - before.get(key, 0)

    assert grown("generation_tokens_total") == usage["completion_tokens"] == 20
    assert grown("prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("request_success_total", 'finished_reason="length",') == 1
    exact = 'lossy="false",'
    assert grown("spec_decode_num_draft_tokens_total", exact) == usage["speculation"]["drafted_tokens"]
    assert grown("spec_decode_num_accepted_tokens_total", exact) == usage["speculation"]["accepted_tokens"]
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("inter_token_latency_seconds_count") == 19

    def ours(name: str) -> float:
        key = f'peagle:{name}{{model_name="{MODEL}"}}'
        return after[key] - before.get(key, 0)

    speculation = usage["speculation"]
    rounds = speculation["rounds"] + speculation["rounds_without_drafts"]
    assert ours("num_rounds_total") == rounds
    assert ours("verify_seconds_total") * 1000 / rounds == pytest.approx(
        speculation["verify_milliseconds_per_round"], abs=1e-3
    )
    assert ours("draft_seconds_total") > 0
    assert 0 <= ours("later_num_drafts_total") <= speculation["rounds"]
    assert after[f'peagle:num_slots{{model_name="{MODEL}"}}'] == 3
    assert 0 <= after[f'vllm:kv_cache_usage_perc{{model_name="{MODEL}"}}'] <= 1
    assert after[f'peagle:drafter_misfit{{model_name="{MODEL}"}}'] == 0


def test_metrics_count_the_requests_of_each_api(server: Server) -> None:
    """Refused ones count as well; monitoring does not."""

    def told() -> dict[str, float]:
        found = re.findall(r'^peagle:api_requests_total{api="(\w+)",.*} (\S+)$', _metrics(server), re.MULTILINE)
        return {name: float(count) for name, count in found}

    before = told()
    assert [*before] == [*FACES]
    messages = [{"role": "user", "content": PROMPT}]
    for path, body in (
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 1}),
        ("/v1/responses", {"colour": 1}),
        ("/v1/messages", {"messages": messages, "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": messages}),
        ("/v1/messages", {"messages": messages, "max_tokens": 1, "stream": True}),
        ("/invocations", {"prompt": PROMPT, "max_tokens": 1}),
        ("/nothing", {}),
    ):
        call(server, "POST", path, body)
    call(server, "GET", "/ping")
    after = told()
    assert {name: after[name] - before[name] for name in after} == {
        "openai": 1, "responses": 2, "anthropic": 3, "sagemaker": 1,
    }  # fmt: skip


def _metrics(server: Server) -> str:
    return call(server, "GET", "/metrics")[2].decode()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score"])
def test_vectors_are_refused_with_the_reason(server: Server, path: str) -> None:
    status, _, content = call(server, "POST", path, {"model": MODEL, "input": "a"})
    error = error_of(content)
    assert (status, error["code"]) == (404, "unsupported_endpoint")
    assert f"{path} is not supported: this server generates text" in error["message"]


def test_metrics_count_form_outcomes(server: Server) -> None:
    pytest.importorskip("llguidance")

    def told() -> dict[str, float]:
        lines = call(server, "GET", "/metrics")[2].decode().splitlines()
        return {
            line.split("{")[0] + "".join(re.findall(r'(?:form|reason)="\w+"', line)): float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith("peagle:grammar")
        }

    before = told()
    body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "num_speculative_tokens": 3}
    form = {"structured_outputs": {"regex": f"(counted {len(before)} vowels, ){{2}}"}}
    usage = json.loads(call(server, "POST", "/v1/completions", {**body, **form})[2])["usage"]["speculation"]
    assert call(server, "POST", "/v1/completions", {**body, **form})[0] == 200
    assert call(server, "POST", "/v1/completions", {**body, "guided_regex": "("})[0] == 400
    assert (
        call(server, "POST", "/v1/completions", {**body, "guided_regex": "never before", "allowed_token_ids": [5]})[0]
        == 400
    )
    grown = {key: value - before.get(key, 0) for key, value in told().items()}
    assert usage["grammar_drafted_tokens"] > 0
    assert grown["peagle:grammar_draft_tokens_total"] == 2 * usage["grammar_drafted_tokens"]
    assert grown["peagle:grammar_accepted_tokens_total"] == 2 * usage["grammar_accepted_tokens"]
    assert grown['peagle:grammar_requests_totalform="regex"'] == 3
    assert grown["peagle:grammar_compile_seconds_count"] == 2, "what stays compiled is not compiled again"
    assert grown["peagle:grammar_compile_seconds_sum"] > 0
    assert grown['peagle:grammar_failures_totalreason="refused"'] == 1
    assert grown['peagle:grammar_failures_totalreason="stuck"'] == 1


def _log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> io.StringIO:
    """What ``serve`` would write on standard error from here on."""
    lines, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonLines())
    monkeypatch.setattr(root, "handlers", [*root.handlers, handler])
    caplog.set_level(logging.INFO, "peagle.serving")
    return lines


@contextmanager
def _serving_anew(served_engine: Engine, prefix_cache_bytes: int = 0) -> Iterator[Server]:
    """A server over an engine that has seen nothing yet."""
    folder, manifest, tokenizer = served_engine.folder, served_engine.manifest, served_engine.tokenizer
    with Engine(folder, manifest, served_engine._backend, tokenizer, prefix_cache_bytes=prefix_cache_bytes) as engine:
        server = Server(engine, ServerSettings(MODEL), port=0)
        server.start()
        yield server
        server.stop()
        assert server.wait(10)


def test_usage_log_and_metrics_agree(
    served_engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = _log(monkeypatch, caplog)
    prompt = PROMPT * 9
    body = {"prompt": prompt, "max_tokens": 60, "ignore_eos": True, "temperature": 0, "num_speculative_tokens": 3}
    with _serving_anew(served_engine, prefix_cache_bytes=1 << 26) as server:
        usage = [json.loads(call(server, "POST", "/v1/completions", body)[2])["usage"] for _ in range(2)]
        series = call(server, "GET", "/metrics")[2].decode().splitlines()
    told = [line for line in map(json.loads, lines.getvalue().splitlines()) if line.get("path") == "/v1/completions"]
    counted = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in series if line[0] != "#"}
    room = served_engine.load_now.cache_tokens
    for line, one in zip(told, usage, strict=True):
        assert line["cached_tokens"] == one["prompt_tokens_details"]["cached_tokens"]
        assert 0 < line["time_to_first_token"] <= line["seconds"]
        assert 0 < line["inter_token_latency"] < line["seconds"]
        assert 0 <= line["queue_seconds"] <= line["time_to_first_token"]
        assert line["cache_usage"] == round((one["prompt_tokens"] + 60) / room, 4)
        same = ("accepted_per_position", "acceptance_length", "later_acceptance_length", "tokens_per_round")
        for name in (*same, "verify_milliseconds_per_round", "draft_milliseconds_per_round"):
            assert line[name] == one["speculation"][name]
    assert told[0]["cached_tokens"] == 0 < told[1]["cached_tokens"] == counted["vllm:prefix_cache_hits_total"]
    assert counted["vllm:prefix_cache_queries_total"] == 2 * usage[0]["prompt_tokens"]
    assert counted["peagle:later_num_drafts_total"] > 0


def _refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [line for record in caplog.records if (line := json.loads(record.message)).get("error")]


def test_log_states_why_a_request_was_rejected(
    server: Server, locked_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "peagle.serving")
    assert call(server, "POST", "/v1/completions", {"prompt": "a", "top_p": 2})[0] == 400
    assert call(server, "POST", "/v1/completions", {"prompt": [5] * 3000})[0] == 400
    assert call(server, "GET", "/v1/models/other")[0] == 404
    assert call(server, "GET", "/nothing")[0] == 404
    assert call(locked_server, "GET", "/v1/models")[0] == 401
    body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True}
    assert call(locked_server, "POST", "/v1/completions", body, {"Authorization": "Bearer first"})[0] == 200
    _until(lambda: len(_refusals(caplog)) == 6)
    told = {
        (line["status"], *(line["error"][name] for name in ("type", "param", "code"))) for line in _refusals(caplog)
    }
    assert told == {
        (400, "invalid_request_error", "top_p", None),
        (400, "invalid_request_error", "prompt", "context_length_exceeded"),
        (404, "not_found_error", "model", "model_not_found"),
        (404, "not_found_error", None, None),
        (401, "authentication_error", None, "invalid_api_key"),
        (200, "timeout_error", None, None),  # the answer had begun
    }
    messages = "\n".join(line["error"]["message"] for line in _refusals(caplog))
    words = ("top_p must be", "3000 tokens", "model other not found", "/nothing", "API key", "after 0.01 seconds")
    assert [each for each in words if each not in messages] == []


def _until(is_so: Callable[[], bool]) -> None:
    """The line of a request is written after its answer."""
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


SECRET = "swordfish"
LEAKS: list[dict[str, Any]] = [
    {"prompt": [SECRET, 5]},
    {"prompt": {"text": SECRET}},
    {"prompt": SECRET + "\ud800"},
    {"prompt": "a", "stop": [SECRET, ""]},
    {"prompt": "a", "bad_words": [SECRET, " "]},
    {"prompt": "a", "logit_bias": {SECRET: 1}},
    {"prompt": "a", "draft": f"'{SECRET}' and {SECRET}'s"},
    {"prompt": "a", "guided_json": '{"title": "' + SECRET},
    {"prompt": "a", "guided_choice": [SECRET, 3]},
    {"prompt": "a", "response_format": {"type": SECRET}},
    {"prompt": "a", "suffix": SECRET},
    {"messages": [{"role": "user", "content": {"text": SECRET}}]},
    {"messages": [{"role": "user", "content": [{"type": SECRET, "text": SECRET}]}]},
    {"messages": [{"role": "user", "content": SECRET}, {"role": "assistant", "content": SECRET}]},
    {"messages": [{"role": [SECRET], "content": f"it's {SECRET}"}]},
    {"messages": [{"role": "user", "content": SECRET, "x": [[[SECRET * 100]]] * 40}], "tools": [{"type": SECRET}]},
    {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": SECRET}},
    {"messages": [{"role": "refuse", "content": f"it's \"{SECRET}\", not '{SECRET}'"}]},
    {"messages": [{"role": "break", "content": f"it's \"{SECRET}\", not '{SECRET}'"}]},
]


def test_no_refusal_puts_the_text_of_a_request_into_the_log(
    served_engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(served_engine.folder, tmp_path / "engine"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'refuse' %}{{ raise_exception(m.content) }}{% endif %}"
        "{% if m.role == 'break' %}{% include m.content %}{% endif %}{{ m.content }}{% endfor %}"
    )
    caplog.set_level(logging.INFO, "peagle.serving")
    with Engine.load(folder, threads=1) as engine:
        server = Server(engine, ServerSettings(MODEL), port=0)
        server.start()
        statuses = []
        for body in LEAKS:
            path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
            statuses.append(call(server, "POST", path, {"max_tokens": 1, **body})[0])
        server.stop()
        assert server.wait(10)
    assert set(statuses) == {400}, statuses
    assert len(_refusals(caplog)) == len(LEAKS)
    for body, record in zip(LEAKS, caplog.records, strict=True):
        assert SECRET not in record.message, body
        assert len(record.message) < 2000


def test_every_line_of_the_log_is_json_and_a_misfit_has_one(
    served_engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(misfit, "LEAST_RATE", 2.0)  # whatever is accepted is too little
    lines = _log(monkeypatch, caplog)
    body = {"prompt": PROMPT, "max_tokens": 120, "ignore_eos": True, "temperature": 0, "num_speculative_tokens": 2}
    with _serving_anew(served_engine) as server:
        for _ in range(2):
            assert call(server, "POST", "/v1/completions", body)[0] == 200
    logging.getLogger("a.library").error("it failed", exc_info=ValueError("of a kind"))
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [each["event"] for each in told if each["event"] != "request"] == ["warning", "error"]
    (warning,) = (each for each in told if each["event"] == "warning")
    assert "does not match this target" in warning["message"]
    assert (told[-1]["logger"], told[-1]["trace"]) == ("a.library", "ValueError: of a kind")


def test_lossy_acceptance_is_labelled_everywhere(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def counted(lossy: str) -> float:
        text = call(server, "GET", "/metrics")[2].decode()
        name = f'vllm:spec_decode_num_accepted_tokens_total{{lossy="{lossy}",model_name="{MODEL}"}} '
        return next((float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name)), 0.0)

    def asked(**fields: Any) -> dict[str, Any]:
        body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        body |= {"num_speculative_tokens": 3, **fields}
        told: dict[str, Any] = json.loads(call(server, "POST", "/v1/completions", body)[2])["usage"]["speculation"]
        return told

    caplog.set_level(logging.INFO, "peagle.serving")
    exact, lossy = counted("false"), counted("true")
    told = asked(acceptance_tolerance=0.9)
    assert (told["lossy"], told["acceptance_tolerance"]) == (True, 0.9)
    assert counted("true") - lossy == told["accepted_tokens"] > 0
    assert counted("false") == exact
    assert not asked()["lossy"]
    assert not asked(acceptance_tolerance=0.9, num_speculative_tokens=0)["lossy"], "nothing was drafted"
    lines = [json.loads(record.message) for record in caplog.records]
    named = [(line.get("lossy"), line.get("acceptance_tolerance")) for line in lines if "completions" in line["path"]]
    assert named[:2] == [(True, 0.9), (None, None)]  # the last line is written after its answer


def test_page_runs_only_its_own_script(server: Server) -> None:
    status, headers, content = call(server, "GET", "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"http://" not in content
    assert b"https://" not in content


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("GET", "/v1/completions", 405)])
def test_other_paths_and_methods_are_refused_in_the_api_s_form(
    server: Server, method: str, path: str, status: int
) -> None:
    found, _, content = call(server, method, path)
    assert found == status
    assert path in error_of(content)["message"]


def test_every_response_names_its_request(server: Server) -> None:
    assert call(server, "GET", "/health", headers={"X-Request-Id": "mine-1"})[1]["x-request-id"] == "mine-1"
    given = call(server, "GET", "/nothing", headers={"X-Request-Id": "x" * 999})[1]["x-request-id"]
    assert 0 < len(given) < 64


def test_api_key_is_required_when_configured(locked_server: Server) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic first"},
        {"Authorization": "Bearer "},
    ):
        status, answered, content = call(locked_server, "GET", "/v1/models", headers=headers)
        assert status == 401
        assert answered["www-authenticate"] == "Bearer"
        assert error_of(content)["code"] == "invalid_api_key"
    for key in ("first", "second"):
        assert call(locked_server, "GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
        assert call(locked_server, "GET", "/v1/models", headers={"x-api-key": key})[0] == 200
    assert call(locked_server, "GET", "/health")[0] == 200


def test_an_answer_that_takes_too_long_is_given_up(locked_server: Server, served_engine: Engine) -> None:
    body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True}
    headers = {"Authorization": "Bearer first"}
    status, _, content = call(locked_server, "POST", "/v1/completions", body, headers)
    assert status == 408
    assert error_of(content)["type"] == "timeout_error"
    status, _, content = call(locked_server, "POST", "/v1/completions", {**body, "stream": True}, headers)
    assert status == 200  # it was sent before
    last = content.decode().split("\n\n")[-3:]
    assert error_of(last[0].removeprefix("data: ").encode())["type"] == "timeout_error"
    assert last[1] == "data: [DONE]"
    assert served_engine.generate([PROMPT], SamplingParams(max_tokens=2))[0].token_ids


def test_server_drafts_follow_its_start_options(served_engine: Engine) -> None:
    server = Server(served_engine, ServerSettings(MODEL, drafts=DefaultDrafts(num_speculative_tokens=0)), port=0)
    server.start()
    try:
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        told = json.loads(call(server, "POST", "/v1/completions", body)[2])["usage"]["speculation"]
        assert told["rounds"] == 0
        assert told["rounds_without_drafts"] > 0
        body["num_speculative_tokens"] = 2
        assert json.loads(call(server, "POST", "/v1/completions", body)[2])["usage"]["speculation"]["rounds"] > 0
    finally:
        server.stop(at_once=True)
        assert server.wait(10)


def test_too_long_body_is_rejected_with_or_without_length(server: Server) -> None:
    assert call(server, "POST", "/v1/completions", b" " * (1 << 17))[0] == 413
    with connect(server) as sent:
        sent.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
        for _ in range(5):
            sent.sendall(piece)
        assert b" 413 " in sent.recv(1000).split(b"\r\n")[0]


def test_stalled_body_times_out(server: Server) -> None:
    began = time.monotonic()
    with connect(server) as sent:
        sent.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in sent.recv(1000).split(b"\r\n")[0]
    assert time.monotonic() - began < 20


def test_full_queue_returns_retry_after(server: Server, served_engine: Engine) -> None:
    running = [served_engine.submit(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True)) for _ in range(11)]
    try:
        status, headers, content = call(server, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
    finally:
        for each in running:
            each.cancel()
    assert status == 429
    assert int(headers["retry-after"]) >= 1
    assert error_of(content)["code"] == "queue_full"
    for each in running:
        each.result()


def test_disconnected_client_frees_its_slot(server: Server, served_engine: Engine) -> None:
    body = json.dumps({"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    for content in (body, body.replace(b'"stream": true', b'"stream":false')):
        sockets = [connect(server) for _ in range(3)]
        for each in sockets:
            each.sendall(head + content)
        time.sleep(0.05)
        for each in sockets:
            each.close()
        (output,) = served_engine.generate([PROMPT], SamplingParams(max_tokens=2))
        assert len(output.token_ids) == 2
