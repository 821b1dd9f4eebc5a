"""Hostile requests: each is refused with a 4xx status, and the server is unaffected."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from peagle.engines.serving.anthropic import bodies as anthropic
from peagle.engines.serving.faces import FACES
from peagle.engines.serving.openai import inert_fields as openai
from peagle.engines.serving.openai.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from peagle.engines.serving.responses import bodies as responses
from peagle.engines.serving.server import Server
from tests.engines.serving.calls import call, connect

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # numbers that are none, in the engine's thread

PATHS_OF = {
    name: [route.path for route in face.routes if "POST" in (route.methods or ())] for name, face in FACES.items()
}
PATHS = [path for paths in PATHS_OF.values() for path in paths]
BODIES = (
    ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, anthropic.MessagesBody, anthropic.CountBody,
    responses.ResponsesBody,
)  # fmt: skip
INERT = {name for each in (openai, anthropic, responses) for name in (*each.IGNORED, *each.NEUTRAL)}
FIELDS = sorted({field.name for body in BODIES for field in msgspec.structs.fields(body)} | INERT)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 3, 2**31, 2**63, 2**64 + 1, -(2**80), 10**400, 0.5, -0.0, 1e308, 1e-320, "", "a", "\x00",
    "😀", "\ud800", "null", "a" * 5000, [], [[]], [None], ["a", 1], [1.5], [-1], [2**40], [[1], ["a"]], {}, {"": ""},
    {"role": "user"}, [{"role": "user", "content": "a"}], [{"role": 3, "content": {}}], [{"content": [{"type": "x"}]}],
    [{"role": "user", "content": "a"}] * 50, {"type": "json_object"}, {"include_usage": "yes"}, {"1": 1e9},
    {"json": {"$ref": "#"}}, {"regex": "((a{0,99}){0,99}){0,99}"}, {"choice": [""]}, {"json_object": True}, "(a|b)*c",
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}, 'start: start "a"', ["\n"],
    "required", {"type": "function", "function": {"name": "f"}}, [{"type": "function", "function": {"name": "f"}}],
    "auto", "strict", list(range(3000)), {"type": "any"}, {"type": "tool", "name": "f"}, {"type": "text", "text": "a"},
    [{"type": "tool_result", "tool_use_id": "a"}], {"effort": "low"}, {"format": {"type": "json_object"}}, "reasoning",
    [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{"}], "input_text", "image", "resp_0",
    {"type": "enabled", "budget_tokens": 2**70}, ["reasoning.encrypted_content"], "function_call_output",
    [{"type": "reasoning", "encrypted_content": "YQ"}],
    {str(at): -100 for at in range(2000)}, "{", "\\", "(?P<a>", "$ref", "type",
)  # fmt: skip
# Forms that take long to compile, or never end.
BOMBS: tuple[Any, ...] = (
    {"allOf": [{"type": "string", "pattern": f".*{at}.*"} for at in range(40)]},
    {"$ref": "#/d/0", "d": {str(at): {"type": "array", "items": {"$ref": f"#/d/{at + 1}"}} for at in range(400)}},
    {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "b": {"$ref": "#"}},
    },
    {"type": "string", "pattern": "(.*a){60}"},
    {"type": "string", "maxLength": 10**9, "minLength": 10**8},
    {"type": "object", "patternProperties": {f"^{at}.*x": {"type": "string"} for at in range(300)}},
    {"enum": [f"value {at}" for at in range(3000)]},
    {"type": "array", "minItems": 10**7, "items": {"type": "array", "minItems": 10**7}},
    {"type": "integer", "multipleOf": 1e-9, "minimum": -(10**30), "maximum": 10**30},
    {"properties": {f"p{at}": {"type": "string", "format": "email"} for at in range(400)}},
)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"$ref": "#/$defs/b"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"b": {"type": "array", "items": {"enum": [1, "x", None]}, "maxItems": 2}},
}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}
CHAT = {
    "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
    "max_tokens": 3, "n": 1, "temperature": 0.7, "seed": 5, "stream": False, "logprobs": True, "top_logprobs": 2,
    "stop": ["x"], "logit_bias": {"5": 1}, "presence_penalty": 0.1, "min_p": 0.1, "top_k": 3, "bad_words": ["b"],
    "cache_salt": "c",
}  # fmt: skip
MESSAGES: dict[str, Any] = {
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "c", "signature": "d"},
                {"type": "tool_use", "id": "e", "name": "f", "input": {"a": "b"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "e", "content": "g", "is_error": True}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}], "max_tokens": 3, "metadata": {"user_id": "h"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}  # fmt: skip
RESPONSE: dict[str, Any] = {
    "instructions": "a",
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "Yg=="},
        {"type": "function_call", "call_id": "e", "name": "f", "arguments": '{"a": "b"}'},
        {"type": "function_call_output", "call_id": "e", "output": [{"type": "input_text", "text": "g"}]},
    ],
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}],
    "max_output_tokens": 3, "reasoning": {"effort": "low", "summary": "auto"}, "store": True,
    "include": ["reasoning.encrypted_content"], "cache_salt": "a",
}  # fmt: skip
# What a body may be before something in it is bent.
PROPER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    ),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"a": {"b": [1]}}, "documents": [{"text": "c"}]}),
    (
        "/v1/completions",
        {"prompt": ["a", "b"], "max_tokens": 2, "echo": True, "logprobs": 1, "prompt_logprobs": 1, "n": 2, "top_p": 0.5,
         "stop_token_ids": [7], "acceptance_tolerance": 0.1, "num_speculative_tokens": 2, "return_drafted": True},
    ),
    (
        "/invocations",
        {"prompt": [1, 2, 3], "max_tokens": 3, "structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True},
         "allowed_token_ids": list(range(50)), "min_tokens": 1, "repetition_penalty": 1.2, "stream": True,
         "stream_options": {"include_usage": True}},
    ),
    ("/tokenize", {"messages": [{"role": "user", "content": "a"}]}),
    ("/v1/messages", {**MESSAGES, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}),
    ("/v1/messages", {**MESSAGES, "stream": True, "output_config": {"effort": "low"}, "seed": 4, "cache_salt": "a"}),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "stop_sequences": ["x"],
         "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "max_tokens": 2},
    ),
    ("/v1/messages/count_tokens", {name: MESSAGES[name] for name in ("system", "messages", "tools", "thinking")}),
    ("/v1/responses", {**RESPONSE, "tool_choice": "required", "parallel_tool_calls": False}),
    ("/v1/responses", {**RESPONSE, "tool_choice": {"type": "function", "name": "f"}, "stream": True}),
    (
        "/v1/responses",
        {"input": "a", "max_output_tokens": 3, "metadata": {"a": "b"}, "stream": True,
         "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}},
    ),
    ("/detokenize", {"tokens": [1, 2, 3]}),
)  # fmt: skip
PATIENCE = 240.0  # seconds: a form may be tried for 30 where the machine has other work

Sent = tuple[str, bytes]
Servers = tuple[Server, Server]


def _value(chance: random.Random) -> Any:
    return copy.deepcopy(chance.choice(VALUES))


def _whole(chance: random.Random) -> Sent:
    """A JSON object of fields of the API, most of them wrong."""
    body = {name: _value(chance) for name in chance.sample(FIELDS, chance.randint(0, 8))}
    body.setdefault("max_tokens", 1)
    return chance.choice(PATHS), _json(body)


def _bent(chance: random.Random) -> Sent:
    """A body as it should be, but for one place or two in it."""
    path, proper = chance.choice(PROPER)
    body = json.loads(json.dumps(proper))
    for _ in range(chance.randint(1, 2)):
        _bend(body, chance)
    return path, _json(body)


def _bend(body: Any, chance: random.Random) -> None:
    """Put another value, or none, in a place of ``body``, or a field where there was none."""
    while True:
        keys = list(body) if isinstance(body, dict) else range(len(body))
        if not keys:
            return
        key = chance.choice(list(keys))
        if isinstance(body[key], dict | list) and body[key] and chance.random() < 0.7:
            body = body[key]
        elif chance.random() < 0.1:
            del body[key]
            return
        elif chance.random() < 0.1 and isinstance(body, dict):
            body[str(chance.choice((*FIELDS, "$ref", "pattern", "type", "x-guidance")))] = _value(chance)
            return
        else:
            body[key] = _value(chance)
            return


def _nested(chance: random.Random) -> Sent:
    """A place of a body as it should be, with more brackets than anybody reads."""
    depth, (path, body) = chance.choice((10, 200, 5000)), chance.choice(PROPER)
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'{"items":', b"}"), (b'{"not":', b"}")))
    deep = opening * depth + b"1" + closing * depth
    at = chance.choice(list(body))
    if at == "tools" and chance.random() < 0.5:
        function = {**TOOL["function"], "parameters": "HERE"}  # type: ignore[dict-item]
        return path, _json({**body, "tools": [{"type": "function", "function": function}]}).replace(b'"HERE"', deep)
    return path, _json({**body, at: "HERE"}).replace(b'"HERE"', deep)


def _cut(chance: random.Random) -> Sent:
    path, content = chance.choice((_whole, _bent))(chance)
    return path, content[: chance.randrange(len(content))]


def _noise(chance: random.Random) -> Sent:
    path, whole = chance.choice((_whole, _bent))(chance)
    content = bytearray(whole)
    for _ in range(chance.randint(1, 8)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    return path, bytes(content)


def _bytes(chance: random.Random) -> Sent:
    return chance.choice(PATHS), chance.randbytes(chance.randint(0, 300))


def _json(body: Any) -> bytes:
    return json.dumps(body).encode("utf-8", "surrogatepass")


KINDS: tuple[Callable[[random.Random], Sent], ...] = (_whole, _whole, _bent, _bent, _nested, _cut, _noise, _bytes)


def _is_wrong(status: int, answer: bytes) -> bool:
    """Whether an answer is none that a client may get, whatever it sent."""
    is_told = status == 200 or (400 <= status < 500 and b'"error"' in answer)
    return not is_told or b"Traceback" in answer or b"server_error" in answer or b"api_error" in answer


@pytest.fixture
def servers(calling_server: Server, server: Server) -> Servers:
    """One whose template has a form of tool calls, and one whose calls have the default form."""
    return calling_server, server


def _attack(servers: Servers, seed: int, requests: int, paths: Collection[str] = PATHS) -> list[str]:
    """What was answered otherwise than it must be."""
    chance, wrong = random.Random(seed), []
    drawn = (chance.choice(KINDS)(chance) for _ in itertools.count())
    for path, content in itertools.islice((sent for sent in drawn if sent[0] in paths), requests):
        kind = {"Content-Type": chance.choice(("application/json", "x"))}
        status, _, answer = call(chance.choice(servers), "POST", path, content, kind, PATIENCE)
        if _is_wrong(status, answer):
            wrong.append(f"{status} for {path} {content[:3000]!r}: {answer[:300]!r}")
    return wrong


def test_no_body_makes_the_server_fail(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    assert _attack(servers, seed=1, requests=500) == []
    assert [call(each, "GET", "/health")[0] for each in servers] == [200, 200]
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_mutated_bodies_come_from_valid_ones(servers: Servers) -> None:
    pytest.importorskip("llguidance")
    for path, body in PROPER:
        assert [call(each, "POST", path, body)[0] for each in servers] == [200, 200], body


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
@pytest.mark.parametrize("face", FACES)
def test_five_thousand_bodies_per_api_never_make_the_server_fail(
    servers: Servers, caplog: pytest.LogCaptureFixture, face: str, seed: int
) -> None:
    """A thousand for each seed."""
    assert _attack(servers, seed, 1000, PATHS_OF[face]) == []
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.slow
def test_bombs_take_no_memory_and_no_turn_of_others(servers: Servers) -> None:
    """Every form that is costly to compile, in every field that takes it, while another client is answered."""
    answered, ends, wrong = 0, threading.Event(), list[str]()

    def other() -> None:
        nonlocal answered
        while not ends.is_set():
            body = {"prompt": "a", "max_tokens": 4}
            status, _, answer = call(servers[0], "POST", "/v1/completions", body, seconds=PATIENCE)
            answered += 1
            if status != 200:
                wrong.append(f"the other client: {status} {answer[:300]!r}")

    def attack() -> None:
        for bomb in BOMBS:
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": bomb}}
            tools = [{"type": "function", "function": {"name": "f", "parameters": {**bomb, "type": "object"}}}]
            bodies: list[dict[str, Any]] = [{"response_format": form}, {"structured_outputs": {"json": bomb}}]
            bodies += [{"tools": tools, "tool_choice": "required"}, {"tools": tools}]
            for server, body in itertools.product(servers, bodies):
                body |= {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
                status, _, answer = call(server, "POST", "/v1/chat/completions", body, seconds=PATIENCE)
                if _is_wrong(status, answer):
                    wrong.append(f"{status} for {json.dumps(body)[:300]}: {answer[:300]!r}")

    attack()
    before, thread = _resident(), threading.Thread(target=other)
    thread.start()
    try:
        attack()
    finally:
        ends.set()
        thread.join()
    assert wrong == []
    assert answered > 8 * len(BOMBS), "nobody waits for a form of another"
    assert _resident() < before + (96 << 20)


@pytest.mark.slow
def test_memory_stays_flat_for_any_input(servers: Servers) -> None:
    _attack(servers, 100, requests=1000)
    before = _resident()
    for seed in range(101, 104):
        _attack(servers, seed, requests=1000)
    assert _resident() < before + (96 << 20)


def _resident() -> int:
    """Bytes of memory that this process holds, in which the server runs."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("this system does not say how much memory a process holds")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


@pytest.mark.slow
def test_slow_senders_do_not_block_others_and_time_out(calling_server: Server) -> None:
    """A hundred who send a byte now and then: others are answered meanwhile, and each of them is told in the end."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(connect(calling_server)) for _ in range(100)]
        for sender in senders:
            sender.sendall(head)
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            for sender in senders:
                sender.sendall(b" ")
            assert call(calling_server, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
        assert {sender.recv(1000).split(b"\r\n")[0].split()[1] for sender in senders} == {b"408"}
    with contextlib.ExitStack() as stack:
        for _ in range(100):  # who never get to the end of their headers
            stack.enter_context(connect(calling_server)).sendall(b"POST /v1/completions HTT")
        assert call(calling_server, "GET", "/health")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/models/%00%ff%2e%2e/ HTTP/1.1\r\nHost: a\r\nAuthorization: \xff\xfe\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 20000 + b"\r\n",
    ],
)
def test_malformed_request_is_rejected_or_disconnected(server: Server, sent: bytes) -> None:
    with connect(server) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        connection.settimeout(10)
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(4096)
            assert not answer or answer.split(b" ")[1][:1] == b"4", answer[:100]
    assert call(server, "GET", "/health")[0] == 200
