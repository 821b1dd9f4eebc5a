"""Paths, tokenization, limits and defaults over HTTP."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest
from openai import APIStatusError, OpenAI

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.engines.serving.speculative_config import DefaultDrafts
from tests.engines.serving.calls import all_slots_taken, call, connect, error_of
from tests.fixtures.servers import MODEL

PROMPT = "def f(x):\n"
ASKED = [{"role": "user", "content": PROMPT}]


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


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/v1/responses", {"input": ASKED, "max_output_tokens": 1}, "responses.routes.responses_of"),
        ("/v1/responses/input_tokens", {"input": ASKED}, "responses.routes.responses_of"),
        ("/v1/chat/completions", {"messages": ASKED, "max_tokens": 1}, "openai.options.readable"),
        ("/tokenize", {"messages": ASKED}, "openai.routes.readable"),
    ],
)
def test_the_parts_of_a_body_are_inspected_while_other_requests_go_on(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], place: str
) -> None:
    module, _, name = f"peagle.engines.serving.{place}".rpartition(".")
    inspect, holds_up = getattr(importlib.import_module(module), name), list[bool]()

    def watched(*arguments: Any) -> Any:
        holds_up.append(asyncio.events._get_running_loop() is not None)
        return inspect(*arguments)

    monkeypatch.setattr(f"{module}.{name}", watched)
    status, _, content = call(server, "POST", path, body)
    assert status == 200, content
    assert holds_up == [False]


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


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": []}, {"tokens": [0]}])
def test_tokenize_input_is_given_once(server: Server, body: Any) -> None:
    assert call(server, "POST", "/tokenize", body)[0] == 400


@pytest.mark.parametrize("tokens", [[-1], [10**9], [2**70], ["a"]])
def test_invalid_tokens_are_refused(server: Server, tokens: Any) -> None:
    assert call(server, "POST", "/detokenize", {"tokens": tokens})[0] == 400


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
        trusting.stop(immediately=True)
        assert trusting.wait(10)
    assert call(server, "POST", "/tokenize", body)[0] == 400


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


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score"])
def test_vectors_are_refused_with_the_reason(server: Server, path: str) -> None:
    status, _, content = call(server, "POST", path, {"model": MODEL, "input": "a"})
    error = error_of(content)
    assert (status, error["code"]) == (404, "unsupported_endpoint")
    assert f"{path} is not supported: this server generates text" in error["message"]


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
    found, headers, content = call(server, method, path)
    assert found == status
    assert path in error_of(content)["message"]
    assert headers.get("allow") == ("POST" if status == 405 else None)


def test_clients_do_not_repeat_a_request_that_timed_out(
    locked_server: Server, served_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "peagle.serving")
    client = OpenAI(base_url=f"{locked_server.url}/v1", api_key="first", max_retries=2)
    with client, all_slots_taken(served_engine), pytest.raises(APIStatusError) as refused:
        client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=400, extra_body={"ignore_eos": True})
    assert (refused.value.status_code, refused.value.response.headers["x-should-retry"]) == (408, "false")
    # The line of the last request may not be written yet.
    assert sum('"/v1/completions"' in each.message for each in caplog.records) <= 1


def test_an_answer_that_takes_too_long_is_given_up(locked_server: Server, served_engine: Engine) -> None:
    body = {"prompt": PROMPT, "max_tokens": 1900, "n": 4, "ignore_eos": True}
    headers = {"Authorization": "Bearer first"}
    with all_slots_taken(served_engine):
        status, _, content = call(locked_server, "POST", "/v1/completions", body, headers)
    assert status == 408
    assert error_of(content)["type"] == "timeout_error"
    with all_slots_taken(served_engine):
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
        server.stop(immediately=True)
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
    assert "--max-queue-size" in error_of(content)["message"]
    assert "max_queue_size" not in error_of(content)["message"]
    for each in running:
        each.result()


def test_priorities_are_taken_where_the_server_has_them(server: Server, served_engine: Engine) -> None:
    by_priority = Server(served_engine, ServerSettings(MODEL, scheduling_policy="priority"), port=0)
    by_priority.start()
    messages = [{"role": "user", "content": "a"}]
    for path, body in (
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": 1}),
        ("/v1/messages", {"messages": messages, "max_tokens": 1}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
    ):
        assert call(by_priority, "POST", path, {**body, "priority": -3})[0] == 200
        status, _, content = call(by_priority, "POST", path, {**body, "priority": 1 << 40})
        assert (status, "priority must be an integer" in error_of(content)["message"]) == (400, True)
        assert call(server, "POST", path, {**body, "priority": 0})[0] == 200
        status, _, content = call(server, "POST", path, {**body, "priority": 1})
        assert (status, "--scheduling-policy" in error_of(content)["message"]) == (400, True)
    by_priority.stop(immediately=True)
    assert by_priority.wait(10)


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
