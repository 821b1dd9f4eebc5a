"""Requests that nobody should send: each is refused with a 4xx, and the server stays as it was."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest

from peagle.engines.serving.server import Server
from tests.engines.serving.calls import call, connect

PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/invocations")
FIELDS = [
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "tools",
    "num_speculative_tokens",
    "draft",
    "tokens",
    "chat_template_kwargs",
    "documents",
    "echo",
    "best_of",
    "suffix",
    "acceptance_tolerance",
    "return_drafted",
    "stop_token_ids",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
]
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 3, 2**31, 2**63, 2**64 + 1, -(2**80), 10**400, 0.5, -0.0, 1e308, 1e-320, "", "a", "\x00",
    "😀", "\ud800", "null", "a" * 5000, [], [[]], [None], ["a", 1], [1.5], [-1], [2**40], [[1], ["a"]], {}, {"": ""},
    {"role": "user"}, [{"role": "user", "content": "a"}], [{"role": 3, "content": {}}], [{"content": [{"type": "x"}]}],
    [{"role": "user", "content": "a"}] * 50, {"type": "json_object"}, {"include_usage": "yes"}, {"1": 1e9},
    {"json": {"$ref": "#"}}, {"regex": "((a{0,99}){0,99}){0,99}"}, {"choice": [""]}, {"json_object": True}, "(a|b)*c",
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}, 'start: start "a"', ["\n"],
)  # fmt: skip


def _whole(chance: random.Random) -> bytes:
    """A JSON object of fields of the API, most of them wrong."""
    body = {name: chance.choice(VALUES) for name in chance.sample(FIELDS, chance.randint(0, 8))}
    body.setdefault("max_tokens", 1)
    return json.dumps(body).encode("utf-8", "surrogatepass")


def _nested(chance: random.Random) -> bytes:
    depth = chance.choice((10, 200, 5000))
    return b'{"prompt":' + b"[" * depth + b"1" + b"]" * depth + b"}"


def _cut(chance: random.Random) -> bytes:
    content = _whole(chance)
    return content[: chance.randrange(len(content))]


def _noise(chance: random.Random) -> bytes:
    content = bytearray(_whole(chance))
    for _ in range(chance.randint(1, 8)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content)


def _bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randint(0, 300))


KINDS = (_whole, _whole, _nested, _cut, _noise, _bytes)


def _attack(server: Server, seed: int, requests: int) -> list[str]:
    """What was answered otherwise than it must be."""
    chance, wrong = random.Random(seed), []
    for _ in range(requests):
        path, content = chance.choice(PATHS), chance.choice(KINDS)(chance)
        status, _, answer = call(
            server, "POST", path, content, {"Content-Type": chance.choice(("application/json", "x"))}
        )
        if not (status == 200 or (400 <= status < 500 and b'"error"' in answer)) or b"Traceback" in answer:
            wrong.append(f"{status} for {path} {content[:300]!r}: {answer[:300]!r}")
    return wrong


def test_no_body_makes_the_server_fail(server: Server) -> None:
    assert _attack(server, seed=1, requests=250) == []
    assert call(server, "GET", "/health")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_no_body_of_a_thousand_makes_the_server_fail(server: Server, seed: int) -> None:
    assert _attack(server, seed, requests=1000) == []


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
def test_what_is_no_request_is_refused_or_hung_up_on(server: Server, sent: bytes) -> None:
    with connect(server) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        connection.settimeout(10)
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(4096)
            assert not answer or answer.split(b" ")[1][:1] == b"4", answer[:100]
    assert call(server, "GET", "/health")[0] == 200
