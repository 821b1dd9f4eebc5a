"""An HTTP request on its way to a replica."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

BLOCK = 128  # characters of a prompt per hashed block
PROMPTS = ("messages", "prompt", "input")  # the fields with the prompt, by API
GENERATES = {"/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/invocations"}
MISDIRECTED = 421  # status of a replica: the answer was begun by another engine, whose text may differ


@dataclass(frozen=True)
class Question:
    """An HTTP request as handed to a replica; ``prompt`` is the text used for routing.

    ``engine`` is set once a part of the answer was sent: only a replica with the same engine may continue it. ``avoid``
    are replicas that died with it.
    """

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    query: bytes = b""
    prompt: str = ""
    engine: str = ""
    avoid: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """The body's fields; empty if it is not a JSON object, which the replica rejects."""
        try:
            fields = json.loads(self.body)
        except ValueError:
            return {}
        return fields if isinstance(fields, dict) else {}

    @property
    def beginnings(self) -> list[int]:
        """Hashes of the prompt's prefixes in whole blocks, shortest first; a short prompt has one."""
        prompt = self.prompt
        ends = range(BLOCK, len(prompt) + 1, BLOCK) if len(prompt) >= BLOCK else [len(prompt)] * bool(prompt)
        hashes, last = [], 0
        for end in ends:
            last = hash((last, prompt[max(end - BLOCK, 0) : end]))
            hashes.append(last)
        return hashes

    def fits(self, engine: str | None) -> bool:
        """Return whether a replica with this engine may answer, or continue what was sent."""
        return self.engine in ("", engine)

    @classmethod
    async def of(cls, request: Request) -> Question:
        """Read a request. One that generates gets a seed if it has none, so that all replicas produce the same text."""
        headers = tuple((name, value) for name, value in request.headers.raw if name != b"content-length")
        question = cls(request.method, request.url.path, headers, await request.body(), request.scope["query_string"])
        fields = question.fields
        prompt = next((fields[name] for name in PROMPTS if fields.get(name)), "")
        question = replace(question, prompt=prompt if isinstance(prompt, str) else json.dumps(prompt))
        if question.path in GENERATES and prompt and fields.get("seed") is None:
            question = replace(question, body=json.dumps({**fields, "seed": random.getrandbits(31)}).encode())
        return question
