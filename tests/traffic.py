"""Clients of all kinds: their requests to every API, their checks of answers, and how they disconnect."""

from __future__ import annotations

import http.client
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

PROMPTS = ("def count_vowels(text):\n", "class Stack:\n", "import os\n\n", "for i in range(10):\n    ", "# A prime is")
UNIT = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"], "maxProperties": 1}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": UNIT}}
# What a client may ask for beside its prompt: its answer is the same alone and among others.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "chat": {},
    "logprobs": {"logprobs": 2},
    "penalties": {"frequency_penalty": 0.6, "repetition_penalty": 1.2, "logit_bias": {"5": 4}, "min_tokens": 8},
    "form": {"structured_outputs": {"json": {"type": "array", "items": {"enum": ["up", "down"]}, "maxItems": 3}}},
    "tools": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 80},
    "stop": {"stop": ["e"], "top_k": 20, "bad_words": ["self"]},
    "messages": {"stop_sequences": ["e"], "top_k": 20},
    "responses": {"store": True, "top_p": 0.9},
}
# A template that says what the messages say, and that knows tools.
TEMPLATE = (
    "{% if tools %}{# calls are written as <tool_call> #}{% endif %}"
    "{% for m in messages %}{{ '# ' + m.content + '\n' if m.role == 'system' else m.content }}{% endfor %}"
)
PLAIN = {"num_speculative_tokens": 0}
MAX_CLOCK_SHIFT = 3720  # seconds between the time of day here and that of a server, whose clock may be moved by an hour
FIRST_LETTERS = 4  # after which a client leaves that does not want the whole answer
Asked = tuple[str, int, int]  # kind, prompt, seed
Answer = tuple[str, list[tuple[str, str]], list[float], str | None]  # text, calls, logprobs, why it ended
EVERY: tuple[Asked, ...] = tuple((kind, at, at % 2) for kind in KINDS for at in range(len(PROMPTS)))


class BadAnswer(Exception):
    """Something else than an answer, or pieces of one, came."""


class Refused(BadAnswer):
    """An error came in place of an answer, or of the rest of one."""


def request(asked: Asked, *, stream: bool = True) -> tuple[str, dict[str, Any]]:
    """The path and the body."""
    kind, prompt, seed = asked
    body = {"max_tokens": 24, "temperature": 0.8, "seed": seed, "stream": stream, **KINDS[kind]}
    messages = [{"role": "user", "content": PROMPTS[prompt]}]
    if kind == "responses":
        del body["max_tokens"]
        return "/v1/responses", {**body, "max_output_tokens": 24, "input": PROMPTS[prompt]}
    if kind == "messages":
        return "/v1/messages", {**body, "messages": messages}
    if kind in ("tools", "chat"):
        return "/v1/chat/completions", {**body, "messages": messages}
    return "/v1/completions", {**body, "prompt": PROMPTS[prompt]}


def read_whole(content: bytes) -> Answer:
    """The answer in a body that came at once."""
    body = json.loads(content)
    _time_of_day(body)
    if "text_output" in body:
        return body["text_output"], [], _triton_logprobs(body), body["finish_reason"]
    if "choices" in body:
        (choice,) = body["choices"]
        message = choice.get("message", {})
        calls = [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls") or ()]
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs", [])
        return choice.get("text") or message.get("content") or "", calls, logprobs, choice["finish_reason"]
    if body.get("type") == "message":
        return "".join(each["text"] for each in body["content"]), [], [], body["stop_reason"]
    if body.get("object") == "response":
        pieces = [piece["text"] for item in body["output"] for piece in item["content"]]
        return "".join(pieces), [], [], body["status"]
    raise BadAnswer(content)


def read_stream(response: http.client.HTTPResponse, leaves_after: float = float("inf")) -> Answer | None:
    """The answer of a stream; None where the client left after so many characters."""
    text, calls, logprobs, reason, is_whole = "", list[tuple[str, str]](), list[float](), None, False
    times = set[int]()
    for line in response:
        is_whole = is_whole or line.startswith(b"data: [DONE]")
        if not line.startswith(b"data: {"):
            continue
        piece = json.loads(line[6:])
        times |= _time_of_day(piece)
        if "text_output" in piece:  # of Triton
            text, logprobs = text + piece["text_output"], logprobs + _triton_logprobs(piece)
            reason = piece.get("finish_reason", reason)
            is_whole = reason is not None
            if len(text) > leaves_after:
                return None
            continue
        if "type" in piece:  # an event of messages or responses
            said, ended, is_last = _event(piece)
            text, reason, is_whole = text + said, ended or reason, is_whole or is_last
            if len(text) > leaves_after:
                return None
            continue
        if "choices" not in piece:
            raise Refused(line) if "error" in piece else BadAnswer(line)
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
    if len(times) > 1:
        raise BadAnswer(f"one answer was made at {times}")
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
            raise Refused(event)
    return "", None, False


def _triton_logprobs(piece: dict[str, Any]) -> list[float]:
    """Its logprobs. Triton writes a tensor of one number as a number."""
    found = piece.get("output_log_probs", [])
    return found if isinstance(found, list) else [found]


def _time_of_day(piece: dict[str, Any]) -> set[int]:
    """When an answer was made, as a body or a piece says, if it does."""
    found = {
        value
        for part in (piece, piece.get("response") or {})
        for name in ("created", "created_at")
        if (value := part.get(name)) is not None
    }
    if not all(isinstance(each, int) and abs(each - time.time()) < MAX_CLOCK_SHIFT for each in found):
        raise BadAnswer(f"an answer of {found} at {time.time():.0f}")
    return found


def is_same(one: Answer, other: Answer) -> bool:
    """Whether two answers are the same: their logprobs but for the last digits."""
    near = len(one[2]) == len(other[2]) and all(abs(a - b) < 1e-4 for a, b in zip(one[2], other[2], strict=True))
    return one[:2] == other[:2] and one[3] == other[3] and near


@dataclass
class Client:
    """One of many: asks again and again until ``until``, and keeps what was not as it must be.

    ``alone`` are the right answers. ``drafts`` returns fields that say how to draft, and whether they may be refused.
    """

    address: tuple[str, int]
    alone: Mapping[Asked, Answer]
    seed: int
    until: float
    key: str = ""
    drafts: Callable[[random.Random], tuple[dict[str, Any], bool]] = lambda dice: (
        {"num_speculative_tokens": dice.choice((None, "auto", 0, 2))},
        False,
    )
    of_bad_requests = frozenset({400})  # the statuses
    stops: threading.Event = field(default_factory=threading.Event)  # set when the server is told to end
    counts: Counter[str] = field(default_factory=Counter)
    drafted: Counter[str] = field(default_factory=Counter)  # answers by what the request said of drafts
    wrong: list[str] = field(default_factory=list)

    @cached_property
    def dice(self) -> random.Random:
        """What it decides by."""
        return random.Random(self.seed)

    @property
    def finished(self) -> int:
        """Number of answers that came whole."""
        return sum(count for name, count in self.counts.items() if name.startswith("answered"))

    def run(self) -> None:
        """Ask until the time is over or the server ends."""
        while time.monotonic() < self.until and not self.stops.is_set():
            try:
                self._once()
            except Exception as error:
                self.wrong.append(f"{time.strftime('%H:%M:%S')} {error!r}")

    def request(self, asked: Asked, *, stream: bool) -> tuple[str, dict[str, Any], set[int]]:
        """The path, the body, and the statuses with which it may be refused."""
        path, body = request(asked, stream=stream)
        fields, may_refuse = self.drafts(self.dice)
        return path, {**body, **fields}, {400, 429} if may_refuse else {429}

    def _once(self) -> None:
        dice = self.dice
        asked, is_bad, streams = dice.choice(list(self.alone)), dice.random() < 0.15, dice.random() < 0.7
        leaves = streams and dice.random() < 0.4 and not self.stops.is_set()
        path, body, refusals = self.request(asked, stream=streams)
        said_of_drafts = {name: body[name] for name in ("draft", "num_speculative_tokens") if name in body}
        if is_bad:
            name, value = dice.choice((("temperature", "warm"), ("tools", 3), ("seed", 1.5), ("colour", "red")))
            body[name] = value
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        try:
            try:
                connection.request("POST", path, json.dumps(body), _headers(self.key))
                line = connection.sock  # the connection forgets it where the response ends it
                response = connection.getresponse()
            except ConnectionError:
                if not self.stops.is_set():  # else the door is closed
                    raise
                return
            if response.status != 200:
                self._refused(response, refusals | self.of_bad_requests if is_bad else refusals)
                return
            leaves_after = FIRST_LETTERS if leaves else float("inf")
            answer = read_stream(response, leaves_after) if streams else read_whole(response.read())
            if answer is None:
                self._leave(line)
                response.close()
                return
            self.counts[f"answered, {path.removeprefix('/v1/')}{', streamed' if streams else ''}"] += 1
            self.drafted[str(body.get("draft") or "not named")] += 1
            if not is_same(answer, self.alone[asked]):
                how = f"{asked}, {'streamed, ' if streams else ''}{said_of_drafts}"
                self.wrong.append(f"{how}: {answer!r} instead of {self.alone[asked]!r}")
        finally:
            connection.close()

    def _refused(self, response: http.client.HTTPResponse, expected: set[int]) -> None:
        said = response.read()
        self.counts[f"refused, {response.status}"] += 1
        if response.status not in expected | ({503} if self.stops.is_set() else set()):
            self.wrong.append(f"{response.status}: {said!r}")

    def _leave(self, line: socket.socket) -> None:
        """Leave in the middle of a stream, in half of the cases as the system does it for a killed client."""
        is_killed = self.dice.random() < 0.5
        if is_killed:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset in place of an end
        self.counts["killed in mid-stream" if is_killed else "left in mid-stream"] += 1


def answers_alone(address: tuple[str, int], key: str = "", every: Sequence[Asked] = EVERY) -> dict[Asked, Answer]:
    """What every request is answered without drafts when nobody else asks."""
    found = {}
    for asked in every:
        path, body = request(asked)
        connection = http.client.HTTPConnection(*address, timeout=120)
        connection.request("POST", path, json.dumps({**body, **PLAIN}), _headers(key))
        answer = read_stream(connection.getresponse())
        if answer is None:
            raise BadAnswer(asked)
        found[asked] = answer
        connection.close()
    for kind in {kind for kind, *_ in every}:
        texts = [text or calls for (each, *_), (text, calls, *_) in found.items() if each == kind]
        if not any(texts) or (kind == "tools" and not all(texts)):
            raise BadAnswer(f"no answer to {kind}")
    return found


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}
