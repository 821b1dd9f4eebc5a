"""A replica: an engine with the HTTP API of ``peagle-compile serve``, without a socket."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from ray import serve
from ray.exceptions import RayError
from starlette.types import Message

from fleet.metrics import Report, Tally
from fleet.question import MISDIRECTED, Question
from fleet.settings import Drafters, Fleet, Holder

POLL_SECONDS = 2.0  # between looks at the settings


class Replica:
    """An engine and its API; it follows the drafters of the settings while requests run."""

    def __init__(self, fleet: Fleet) -> None:
        from peagle.engines import Engine
        from peagle.engines.serving.app import create_app
        from peagle.engines.serving.settings import ServerSettings, model_name

        self._engine = Engine.load(
            fleet.engine,
            max_batch_size=fleet.max_batch_size,
            threads=fleet.threads,
            prefix_cache_bytes=fleet.prefix_cache_bytes,
        )
        manifest = self._engine.manifest
        self._app = create_app(self._engine, ServerSettings(model_name(manifest, self._engine.folder)))
        self._id, self._name = engine_id(manifest), serve.get_replica_context().replica_id.unique_id
        self._drafter = self._own = manifest.drafter_name
        self._drafters = Drafters()
        self._problem: str | None = None
        self._since = self._counted = Tally()
        self._follower = asyncio.ensure_future(self._follow())

    def record_replica_metadata(self) -> dict[str, str]:
        """Return the engine's identity; Ray shows it to the router."""
        return {"engine": self._id}

    async def answer(self, question: Question) -> AsyncIterator[Message]:
        """Yield the answer as ASGI messages: its start, then chunks of its body."""
        if not question.fits(self._id):
            yield {"type": "http.response.start", "status": MISDIRECTED, "headers": []}
            return
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
        whence = [(b"x-replica", self._name.encode()), (b"x-engine", self._id.encode())]
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], *whence]
                yield message
            await task
        finally:
            gone.set()  # the client is gone: free the request's slot
            task.cancel()

    async def check_health(self) -> None:
        """Generate a token, as /health does; Ray calls this and replaces the replica if it raises."""
        async for message in self.answer(Question("GET", "/health", (), b"")):
            if message.get("status", 200) != 200:
                raise RuntimeError(f"/health returned status {message['status']}")

    async def metrics(self) -> tuple[str, str]:
        """Return the replica's name and its metrics."""
        return self._name, self._text()

    async def report(self) -> Report:
        """Return the replica's state."""
        return Report(self._name, self._id, self._drafter, Tally.of(self._text()) - self._since, self._problem)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the tokens and seconds of the answers since the last call; Ray calls this for its autoscaling."""
        now = Tally.of(self._text())
        new, self._counted = now - self._counted, now
        return {"tokens": new.tokens, "seconds": new.seconds}

    def _text(self) -> str:
        text: bytes = self._app.state.server.metrics.text()
        return text.decode()

    async def _follow(self) -> None:
        """Use the drafter of the settings, for as long as the replica runs."""
        from peagle.plugins.errors import PeagleError

        holder = Holder.actor()
        while True:
            try:
                fleet: Fleet = await holder.get.remote()
                rank = serve.get_replica_context().rank
                wanted = fleet.drafters.of(rank.rank if rank else 0) or self._own
                if wanted != self._drafter:
                    await self._use(wanted)
                self._problem = None
                if fleet.drafters != self._drafters:  # all replicas count from here, to be compared
                    self._drafters, self._since = fleet.drafters, Tally.of(self._text())
            except RayError as error:  # Ray starts the actor again
                self._problem = f"the settings cannot be read ({type(error).__name__}); the drafter stays"
            except PeagleError as error:
                self._problem = error.one_line
            await asyncio.sleep(POLL_SECONDS)

    async def _use(self, drafter: str) -> None:
        """Make a drafter the one of requests that name none. Requests that run keep theirs."""
        from peagle.engines.serving.speculative_config import DefaultDrafts

        await asyncio.to_thread(self._engine.load_drafter, drafter)
        state: Any = self._app.state.server
        state.settings = replace(state.settings, drafts=DefaultDrafts(draft=drafter))
        last, self._drafter, self._since = self._drafter, drafter, Tally.of(self._text())
        if last != self._own:
            await asyncio.to_thread(self._engine.unload_drafter, last)


def engine_id(manifest: Any) -> str:
    """Return an id that engines share only if they write the same text: of all files but reports and drafters."""
    files = {
        name: entry.sha256
        for name, entry in manifest.files.items()
        if not name.startswith(("drafter/", "drafters/")) and "report" not in name
    }
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]


def _scope(question: Question) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": question.method,
        "path": question.path, "raw_path": question.path.encode(), "query_string": question.query,
        "headers": [*question.headers, (b"content-length", str(len(question.body)).encode())],
    }  # fmt: skip
