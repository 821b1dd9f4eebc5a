"""Serve one engine with several replicas behind Ray Serve; prompts with a common prefix go to the same replica.

    pip install 'peagle-compile[serve]' 'ray[serve]'
    python examples/ray_serve.py demo-engine --replicas 2 --port 8000

Every replica has the loop and the HTTP API of ``peagle-compile serve``. The proxy accepts requests, chooses a replica
by the prompt's prefix and the replica's load, and forwards the response. If a replica dies, no answer is lost: the
proxy repeats the request on another replica with the same seed, which produces the same text, and skips the part of a
stream that was already sent. docs/ray.md describes the guarantees and their limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from peagle.compiler.console.sizes import argument

TRIES = 5  # replicas tried for a request, one after another
BLOCK = 128  # characters of a prompt per hashed block
REMEMBERED = 50_000  # prompt prefixes
MOST_AHEAD = 4  # requests that a replica may be ahead of the least busy one before that one is preferred


@dataclass(frozen=True)
class Question:
    """An HTTP request as handed to a replica; ``prompt`` is the text used for routing."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    prompt: str

    @property
    def fields(self) -> dict[str, Any]:
        """Return the body's fields; empty if it is not a JSON object, which the replica rejects."""
        try:
            fields = json.loads(self.body)
        except ValueError:
            return {}
        return fields if isinstance(fields, dict) else {}

    @classmethod
    async def of(cls, request: Request) -> Question:
        """Read a request. A request without a seed gets one, so that another replica can produce the same text."""
        headers = tuple((name, value) for name, value in request.headers.raw if name != b"content-length")
        question = cls(request.method, request.url.path, headers, await request.body(), "")
        fields = question.fields
        prompt = fields.get("messages") or fields.get("prompt") or ""
        question = replace(question, prompt=prompt if isinstance(prompt, str) else json.dumps(prompt))
        if fields and prompt and fields.get("seed") is None:
            question = replace(question, body=json.dumps({**fields, "seed": random.getrandbits(31)}).encode())
        return question


class PrefixRouter(FIFOMixin, RequestRouter):
    """Sends a prompt to the replica with its longest known prefix, unless that replica is much busier than others.

    Each router process keeps its own record of sent prompts, so several proxies learn independently.
    """

    def initialize_state(self, **_: Any) -> None:
        """Called once, by Ray."""
        self._seen: OrderedDict[int, ReplicaID] = OrderedDict()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return ranks of replicas: Ray takes the least busy one of the first rank that has capacity."""
        everyone = list(candidate_replicas)
        random.shuffle(everyone)
        known = {replica.replica_id: replica for replica in everyone}
        for beginning in reversed(_beginnings(pending_request)):
            best = known.get(self._seen.get(beginning))
            if best is not None:
                return [everyone] if self._is_behind(best, everyone) else [[best], everyone]
        return [everyone]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Record the replica that a prompt was sent to; called by Ray."""
        for beginning in _beginnings(pending_request):
            self._seen[beginning] = replica_id
            self._seen.move_to_end(beginning)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    def _is_behind(self, replica: RunningReplica, everyone: list[RunningReplica]) -> bool:
        lengths = {each.replica_id: self.replica_queue_len_cache.get(each.replica_id) or 0 for each in everyone}
        return bool(lengths[replica.replica_id] - min(lengths.values()) > MOST_AHEAD)


def _beginnings(request: PendingRequest | None) -> list[int]:
    """Return hashes of the prompt's prefixes in whole blocks, shortest first; a short prompt has one."""
    prompt = request.args[0].prompt if request and request.args else ""
    ends = range(BLOCK, len(prompt) + 1, BLOCK) if len(prompt) >= BLOCK else [len(prompt)] * bool(prompt)
    hashes, last = [], 0
    for end in ends:
        last = hash((last, prompt[max(end - BLOCK, 0) : end]))
        hashes.append(last)
    return hashes


class Replica:
    """An engine with the API of ``peagle-compile serve``, without a socket."""

    def __init__(self, engine: str, max_batch_size: int, threads: int, prefix_cache_bytes: int) -> None:
        from peagle.engines import Engine
        from peagle.engines.serving.app import create_app
        from peagle.engines.serving.settings import ServerSettings, model_name

        loaded = Engine.load(
            engine, max_batch_size=max_batch_size, threads=threads, prefix_cache_bytes=prefix_cache_bytes
        )
        self._app = create_app(loaded, ServerSettings(model_name(loaded.manifest, loaded.folder)))
        self._name = serve.get_replica_context().replica_id.unique_id.encode()

    async def answer(self, question: Question) -> AsyncIterator[Message]:
        """Yield the answer as ASGI messages: its start, then chunks of its body."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()
        given: list[Message] = [{"type": "http.request", "body": question.body, "more_body": False}]

        async def receive() -> Message:
            if not given:
                await gone.wait()
            return given.pop() if given else {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app(_scope(question), receive, messages.put)
            finally:
                await messages.put(None)

        task = asyncio.ensure_future(run())
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"x-replica", self._name)]
                yield message
            await task
        finally:
            gone.set()  # the client is gone: free the request's slot
            task.cancel()

    async def check_health(self) -> None:
        """Generate a token, as /health does; Ray calls this and replaces the replica if it raises."""
        async for message in self.answer(Question("GET", "/health", (), b"", "")):
            if message.get("status", 200) != 200:
                raise RuntimeError(f"/health returned status {message['status']}")


def _scope(question: Question) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": question.method,
        "path": question.path, "raw_path": question.path.encode(), "query_string": b"",
        "headers": [*question.headers, (b"content-length", str(len(question.body)).encode())],
    }  # fmt: skip


@dataclass
class Told:
    """The sent part of a stream, so that a restarted stream can continue where the first one broke off."""

    head: dict[str, Any] = field(default_factory=dict)  # fields of the first event that identify the stream
    characters: dict[int, int] = field(default_factory=dict)  # by choice
    ended: set[int] = field(default_factory=set)
    skips: dict[int, int] = field(default_factory=dict)

    def begin_anew(self) -> None:
        """Start again from the beginning of the same stream."""
        self.skips = dict(self.characters)

    def next(self, event: str) -> str | None:
        """Return the event to send, or None if it was sent.

        Raises ``ValueError`` if a partly sent event cannot be cut.
        """
        if event == "[DONE]":
            return event
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
        holder, name = (choice["delta"], "content") if "delta" in choice else (choice, "text")
        text = holder.get(name) or ""
        skipped = min(self.skips.get(index, 0), len(text))
        if 0 < skipped < len(text) and choice.get("logprobs"):
            raise ValueError("an event with logprobs cannot be cut")
        was_begun = index in self.skips
        if skipped:
            self.skips[index] -= skipped
            holder[name] = text[skipped:]
        self.characters[index] = self.characters.get(index, 0) + len(text) - skipped
        if choice.get("finish_reason"):
            self.ended.add(index)
        return index in self.ended or len(text) > skipped or not was_begun


class Front:
    """Accepts HTTP requests and forwards them to replicas."""

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        question = await Question.of(request)
        if question.fields.get("stream") is True:
            return await self._streamed(question)
        for tries_left in reversed(range(TRIES)):
            try:
                messages = [message async for message in self._replicas.answer.remote(question)]
                break
            except (ActorDiedError, ActorUnavailableError):
                if not tries_left:
                    return _unavailable()
        body = b"".join(message.get("body", b"") for message in messages)
        return Response(body, messages[0]["status"], _headers(messages[0]))

    async def _streamed(self, question: Question) -> Response:
        messages = self._messages(question)
        try:
            start = await anext(messages)
        except (ActorDiedError, ActorUnavailableError):
            return _unavailable()
        if start["status"] != 200:
            body = b"".join([message.get("body", b"") async for message in messages])
            return Response(body, start["status"], _headers(start))
        return StreamingResponse(_events(messages), 200, _headers(start))

    async def _messages(self, question: Question) -> AsyncIterator[Message]:
        """Yield the messages of one replica; if it dies, yield those of the next replica from the start."""
        for tries_left in reversed(range(TRIES)):
            try:
                async for message in self._replicas.answer.remote(question):
                    yield message
                return
            except (ActorDiedError, ActorUnavailableError):
                if not tries_left:
                    raise


async def _events(messages: AsyncIterator[Message]) -> AsyncIterator[str]:
    """Yield every server-sent event once, whichever replica it comes from."""
    told, buffered = Told(), ""
    try:
        async for message in messages:
            if message["type"] == "http.response.start":  # another replica, with the same seed
                told.begin_anew()
                buffered = ""
                continue
            *whole, buffered = (buffered + message.get("body", b"").decode()).split("\n\n")
            for event in whole:
                if (said := told.next(event.removeprefix("data: "))) is not None:
                    yield f"data: {said}\n\n"
    except (ActorDiedError, ActorUnavailableError, ValueError) as error:
        problem = {"message": f"the stream broke off: {error}", "type": "server_error", "param": None, "code": None}
        yield f"data: {json.dumps({'error': problem})}\n\n"


def _headers(start: Message) -> dict[str, str]:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]}
    return {name: value for name, value in headers.items() if name not in {"content-length", "transfer-encoding"}}


def _unavailable() -> Response:
    problem = {"message": "no replica answers", "type": "server_error", "param": None, "code": None}
    return Response(json.dumps({"error": problem}), 503, {"Retry-After": "5"}, "application/json")


def application(engine: str, replicas: int, max_batch_size: int, threads: int, prefix_cache_bytes: int) -> Any:
    """Return the Ray application; each replica reserves ``threads`` processors."""
    several = serve.deployment(
        Replica,
        num_replicas=replicas,
        max_ongoing_requests=256,
        ray_actor_options={"num_cpus": threads},
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=60,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )
    front = serve.deployment(Front, max_ongoing_requests=4096, ray_actor_options={"num_cpus": 0})
    return front.bind(several.bind(engine, max_batch_size, threads, prefix_cache_bytes))


def main() -> None:
    """Run on this machine, or on the cluster in RAY_ADDRESS, until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="engine folder, at the same absolute path on every machine")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-batch-size", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="processors per replica")
    size = argument("--prefix-cache-bytes")
    parser.add_argument(
        "--prefix-cache-bytes", type=size, default=256 << 20, help="prompt cache per replica, such as 1GB"
    )
    asked = parser.parse_args()
    if "RAY_ADDRESS" not in os.environ:
        ray.init(include_dashboard=False)
    serve.start(http_options={"host": asked.host, "port": asked.port})
    running = application(asked.engine, asked.replicas, asked.max_batch_size, asked.threads, asked.prefix_cache_bytes)
    serve.run(running, blocking=True)


if __name__ == "__main__":
    main()
