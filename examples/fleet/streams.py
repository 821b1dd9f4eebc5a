"""Streams of server-sent events that outlive the replica that began them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message

DONE = "[DONE]"
GROWING = {  # texts and lists of a choice that grow with its tokens: those of all its events together do not vary
    "choice": ("text", "token_ids", "prompt_token_ids"),
    "delta": ("content", "reasoning_content", "tool_calls"),
    "logprobs": ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset"),
}
Lengths = Counter[tuple[str, str]]


class Broken(Exception):
    """A stream that cannot go on; the client is told why."""


@dataclass(frozen=True)
class Api:
    """The streams of one API. ``error`` writes its last event if it breaks off.

    Only streams of choices resume: those of other APIs carry ids and numbers in every event.
    """

    error: Callable[[str], str]
    resumes: bool = False


def _of_choices(message: str) -> str:
    problem = {"message": message, "type": "server_error", "param": None, "code": None}
    return f"data: {json.dumps({'error': problem})}\n\n"


def _of_messages(message: str) -> str:
    problem = {"type": "error", "error": {"type": "api_error", "message": message}}
    return f"event: error\ndata: {json.dumps(problem)}\n\n"


def _of_responses(message: str) -> str:
    problem = {"type": "error", "code": "server_error", "message": message, "param": None}
    return f"event: error\ndata: {json.dumps(problem)}\n\n"


_OTHERS = {"/v1/messages": Api(_of_messages), "/v1/responses": Api(_of_responses)}
_CHOICES = Api(_of_choices, resumes=True)


def api_of(path: str) -> Api:
    """Return the API of a request's path."""
    return _OTHERS.get(path, _CHOICES)


@dataclass
class Told:
    """The sent part of a stream, so that a restarted stream can continue where the first one broke off."""

    head: dict[str, Any] = field(default_factory=dict)  # fields of the first event that identify the stream
    sent: dict[int, Lengths] = field(default_factory=dict)  # by choice
    ended: set[int] = field(default_factory=set)
    skips: dict[int, Lengths] = field(default_factory=dict)
    is_whole: bool = False

    def begin_anew(self) -> None:
        """Start again from the beginning of the same stream."""
        self.skips = {index: Counter(lengths) for index, lengths in self.sent.items()}

    def next(self, event: str) -> str | None:
        """Return the event to send without its sent part, or None if nothing is left."""
        if event == DONE:
            self.is_whole, was_whole = True, self.is_whole
            return None if was_whole else event
        content = json.loads(event)
        if "choices" not in content:
            return event
        self.head = self.head or {key: content[key] for key in ("id", "created") if key in content}
        had = content["choices"]
        content["choices"] = [choice for choice in had if self._rest(choice)]
        return json.dumps({**content, **self.head}) if content["choices"] or not had else None

    def _rest(self, choice: dict[str, Any]) -> bool:
        """Remove the sent part from a choice; return True if anything is left."""
        index = choice["index"]
        if index in self.ended:
            return False
        sent, skips = self.sent.setdefault(index, Counter()), self.skips.get(index, Counter())
        is_new, cut = index not in self.skips, Lengths()
        for place, names in GROWING.items():
            part = choice if place == "choice" else choice.get(place) or {}
            for name in filter(part.get, names):
                key, value = (place, name), part[name]
                cut[key] = min(skips[key], len(value))
                skips[key] -= cut[key]
                sent[key] += len(value) - cut[key]
                part[name] = value[cut[key] :]
                is_new |= cut[key] < len(value)
                if place == "delta" and not part[name]:
                    del part[name]
        if choice.get("drafted"):
            choice["drafted"] = _after(choice["drafted"], cut["choice", "text"] + cut["delta", "content"])
        if choice.get("finish_reason"):
            self.ended.add(index)
        return is_new or index in self.ended


def _after(runs: Sequence[tuple[str, bool]], characters: int) -> list[tuple[str, bool]]:
    """Return the runs of a text after so many characters. Their ends vary, because the number of drafts does."""
    left = []
    for text, is_drafted in runs:
        if text[characters:]:
            left.append((text[characters:], is_drafted))
        characters = max(characters - len(text), 0)
    return left


async def events(messages: AsyncIterator[Message], api: Api) -> AsyncIterator[str]:
    """Yield every server-sent event once, from the ASGI messages of one replica after another."""
    told, buffered = Told(), ""
    try:
        async for message in messages:
            if message["type"] == "http.response.start":  # another replica, with the same seed
                told.begin_anew()
                buffered = ""
                continue
            *whole, buffered = (buffered + message.get("body", b"").decode()).split("\n\n")
            for event in whole:
                if not api.resumes or event.startswith(":"):  # a comment says that the answer goes on
                    yield f"{event}\n\n"
                elif (said := told.next(event.removeprefix("data: "))) is not None:
                    yield f"data: {said}\n\n"
    except Broken as error:
        yield api.error(f"the stream broke off: {error}")
