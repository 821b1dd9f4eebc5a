"""Many clients at once, who ask for all kinds of answers, stream, go away, and send nonsense."""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import Limits, ServerSettings
from tests.engines.serving.calls import call
from tests.fixtures.servers import MODEL, serving

pytest.importorskip("llguidance")

PROMPTS = ("def count_vowels(text):\n", "class Stack:\n", "import os\n\n", "for i in range(10):\n    ", "# A prime is")
UNIT = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"], "maxProperties": 1}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": UNIT}}
# What a client may ask for beside its prompt: its answer is the same alone and among others.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": 2},
    "penalties": {"frequency_penalty": 0.6, "repetition_penalty": 1.2, "logit_bias": {"5": 4}, "min_tokens": 8},
    "form": {"structured_outputs": {"json": {"type": "array", "items": {"enum": ["up", "down"]}, "maxItems": 3}}},
    "tools": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 80},
    "stop": {"stop": ["e"], "top_k": 20, "bad_words": ["self"]},
    "messages": {"stop_sequences": ["e"], "top_k": 20},
    "responses": {"store": True, "top_p": 0.9},
}
Asked = tuple[str, int, int]  # kind, prompt, seed
Answer = tuple[str, list[tuple[str, str]], list[float], str | None]  # text, calls, logprobs, why it ended


def _request(asked: Asked) -> tuple[str, dict[str, Any]]:
    """The path and the body."""
    kind, prompt, seed = asked
    body = {"max_tokens": 24, "temperature": 0.8, "seed": seed, "stream": True, **KINDS[kind]}
    if kind == "messages":
        return "/v1/messages", {**body, "messages": [{"role": "user", "content": PROMPTS[prompt]}]}
    if kind == "responses":
        del body["max_tokens"]
        return "/v1/responses", {**body, "max_output_tokens": 24, "input": PROMPTS[prompt]}
    if kind == "tools":
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": PROMPTS[prompt]}]}
    return "/v1/completions", {**body, "prompt": PROMPTS[prompt]}


class BadAnswer(Exception):
    """Something else than pieces of an answer came."""


def _read(response: http.client.HTTPResponse, leaves_after: float) -> Answer | None:
    """The answer of a stream; None where the client left after so many characters."""
    text, calls, logprobs, reason, is_whole = "", list[tuple[str, str]](), list[float](), None, False
    for line in response:
        is_whole = is_whole or line.startswith(b"data: [DONE]")
        if not line.startswith(b"data: {"):
            continue
        piece = json.loads(line[6:])
        if "type" in piece:  # an event of messages or responses
            said, ended, is_last = _event(piece)
            text, reason, is_whole = text + said, ended or reason, is_whole or is_last
            if len(text) > leaves_after:
                return None
            continue
        if "choices" not in piece:
            raise BadAnswer(line)
        (choice,) = piece["choices"]
        delta = choice.get("delta", {})
        text += choice.get("text") or delta.get("content") or ""
        calls += [(each["function"]["name"], each["function"]["arguments"]) for each in delta.get("tool_calls", ())]
        logprobs += (choice["logprobs"] or {}).get("token_logprobs", ())
        reason = choice["finish_reason"] or reason
        if len(text) > leaves_after:
            return None
    if not is_whole:
        raise BadAnswer("it broke off")
    return text, calls, logprobs, reason


def _event(event: dict[str, Any]) -> tuple[str, str | None, bool]:
    """The text of one event, why the answer ended, and whether this is the last event."""
    match event["type"]:
        case "content_block_delta":
            return event["delta"]["text"], None, False
        case "message_delta":
            return "", event["delta"]["stop_reason"], False
        case "message_stop":
            return "", None, True
        case "response.output_text.delta":
            return event["delta"], None, False
        case "response.completed" | "response.incomplete":
            return "", event["response"]["status"], True
        case "error" | "response.failed":
            raise BadAnswer(event)
    return "", None, False


def _is_same(one: Answer, other: Answer) -> bool:
    return one[:2] == other[:2] and one[3] == other[3] and one[2] == pytest.approx(other[2], abs=1e-4)


@dataclass
class Client:
    """One of many: asks again and again until ``until``, and keeps what was not as it must be."""

    address: tuple[str, int]
    alone: dict[Asked, Answer]  # without neighbours
    seed: int
    until: float
    finished: int = 0
    stops: threading.Event = field(default_factory=threading.Event)  # set when the server is told to end
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        chance = random.Random(self.seed)
        while time.monotonic() < self.until and not self.stops.is_set():
            try:
                self._once(chance)
            except Exception as error:
                self.wrong.append(repr(error))

    def _once(self, chance: random.Random) -> None:
        asked, is_bad = chance.choice(list(self.alone)), chance.random() < 0.15
        leaves_after = 4 if chance.random() < 0.3 and not self.stops.is_set() else float("inf")
        path, body = _request(asked)
        body["num_speculative_tokens"] = chance.choice((None, "auto", 0, 2))
        if is_bad:
            name, value = chance.choice((("temperature", "warm"), ("tools", 3), ("seed", 1.5), ("colour", "red")))
            body[name] = value
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        try:
            try:
                connection.request("POST", path, json.dumps(body))
                response = connection.getresponse()
            except ConnectionError:
                if not self.stops.is_set():  # else the door is closed
                    raise
                return
            if response.status != 200:
                expected = {400} if is_bad else {429}
                if response.status not in expected | ({503} if self.stops.is_set() else set()):
                    self.wrong.append(f"{response.status}: {response.read()!r}")
                return
            answer = _read(response, leaves_after)
            if answer is None:
                return
            if not _is_same(answer, self.alone[asked]):
                self.wrong.append(f"{asked}: {answer!r} instead of {self.alone[asked]!r}")
            self.finished += 1
        finally:
            connection.close()


def _alone(address: tuple[str, int]) -> dict[Asked, Answer]:
    """What every request is answered when nobody else asks."""
    found = {}
    for kind in KINDS:
        for prompt in range(len(PROMPTS)):
            path, body = _request((kind, prompt, prompt % 2))
            connection = http.client.HTTPConnection(*address, timeout=120)
            connection.request("POST", path, json.dumps({**body, "num_speculative_tokens": 0}))
            answer = _read(connection.getresponse(), float("inf"))
            assert answer is not None
            found[kind, prompt, prompt % 2] = answer
            connection.close()
    assert all(calls for (kind, *_), (_, calls, _, _) in found.items() if kind == "tools")
    assert any(text for (kind, *_), (text, *_) in found.items() if kind == "messages")
    assert any(text for (kind, *_), (text, *_) in found.items() if kind == "responses")
    return found


def _crowd(engine: Engine, alone: dict[Asked, Answer], seconds: float, clients: int) -> list[Client]:
    server = Server(engine, ServerSettings(MODEL, limits=Limits()), port=0)
    server.start()
    address = server.host, server.port
    try:
        alone.update({} if alone else _alone(address))
        crowd = [Client(address, alone, seed, time.monotonic() + seconds) for seed in range(clients)]
        threads = [threading.Thread(target=client.run) for client in crowd]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert call(server, "GET", "/health")[0] == 200
    finally:
        server.stop()
        assert server.wait(30)
    return crowd


def _check(engine: Engine, crowd: list[Client]) -> None:
    assert [wrong for client in crowd for wrong in client.wrong] == []
    assert sum(client.finished for client in crowd) > len(crowd)
    outputs = engine.generate(list(PROMPTS), SamplingParams(max_tokens=4))  # every slot still serves
    assert len(outputs) == len(PROMPTS)


def test_every_answer_among_many_is_the_answer_alone(calling_engine: Engine) -> None:
    _check(calling_engine, _crowd(calling_engine, {}, seconds=2, clients=8))


@pytest.mark.slow
def test_two_minutes_of_sixteen_clients_lose_no_slot_and_no_memory(calling_engine: Engine) -> None:
    import resource

    alone: dict[Asked, Answer] = {}
    _crowd(calling_engine, alone, seconds=10, clients=16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _check(calling_engine, _crowd(calling_engine, alone, seconds=120, clients=16))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 64 * 1024  # KiB


@pytest.mark.slow
def test_server_stopped_under_load_finishes_accepted_requests(calling_engine: Engine) -> None:
    """SIGTERM to ``serve`` while sixteen clients ask for all kinds: who was let in gets the whole answer."""
    with serving(calling_engine.folder, "--max-batch-size", "3") as (process, url):
        host, port = url.removeprefix("http://").split(":")
        address = host, int(port)
        alone, stops = _alone(address), threading.Event()
        crowd = [Client(address, alone, seed, time.monotonic() + 60, stops=stops) for seed in range(16)]
        threads = [threading.Thread(target=client.run) for client in crowd]
        log = threading.Thread(target=lambda: logged.append(process.stderr.read() if process.stderr else ""))
        logged: list[str] = []
        for thread in (log, *threads):
            thread.start()
        time.sleep(5)
        stops.set()
        process.send_signal(signal.SIGTERM)
        for thread in (*threads, log):
            thread.join()
        assert process.wait(30) == 0
    assert [wrong for client in crowd for wrong in client.wrong] == []
    assert sum(client.finished for client in crowd) > len(crowd)
    assert "trace" not in logged[0]
