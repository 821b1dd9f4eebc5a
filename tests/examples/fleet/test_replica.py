"""A replica without Ray, around a server that is not real either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fleet.metrics import Tally
from fleet.question import Question
from fleet.settings import Drafters, Fleet, Holder, Scaling
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.examples.fleet.conftest import ActorDiedError, ActorUnavailableError


class SettingsActor:
    """The actor with the settings. It raises these errors first."""

    def __init__(self, fleet: Fleet, *errors: Exception) -> None:
        self._fleet, self._errors = fleet, list(errors)
        self.get = self

    async def remote(self) -> Fleet:
        """Return the settings: Ray is asked for them with ``get.remote()``."""
        if self._errors:
            raise self._errors.pop(0)
        return self._fleet


def test_the_server_gets_the_path_the_query_and_the_body_of_a_request(module_of_fleet: Callable[[str], Any]) -> None:
    base: Any = module_of_fleet("replica").Replica

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        said = f"{request.url.path}?{request.url.query} {(await request.body()).decode()}"
        await PlainTextResponse(said)(scope, receive, send)

    class Replica(base):  # type: ignore[misc]
        """One without an engine."""

        def __init__(self) -> None:
            self._id, self._name, self._app = "engine", "replica", server

    async def answer(question: Question) -> bytes:
        return b"".join([message.get("body", b"") async for message in Replica().answer(question)])

    question = Question("GET", "/v1/responses/resp_1/input_items", (), b"body", b"after=item_3&limit=2")
    assert asyncio.run(answer(question)) == b"/v1/responses/resp_1/input_items?after=item_3&limit=2 body"


def test_a_replica_follows_the_settings_again_once_their_actor_has_restarted(
    module_of_fleet: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of_fleet("replica")
    wanted = Fleet("engine", 1, 1, 0, Scaling(1, 1, 1), drafters=Drafters("code"))
    settings = SettingsActor(wanted, ActorDiedError("its process ended"), ActorUnavailableError("it starts"))
    problems: list[str | None] = []

    base: Any = module.Replica

    class Replica(base):  # type: ignore[misc]
        """One without an engine."""

        def __init__(self) -> None:
            self._drafter = self._own = "built-in"
            self._drafters, self._since = Drafters(), Tally()
            self._problem: str | None = None

        async def _use(self, drafter: str) -> None:
            self._drafter = drafter

        def _text(self) -> str:
            return ""

    async def follow() -> Replica:
        replica = Replica()

        async def pause(seconds: float) -> None:
            problems.append(replica._problem)
            if replica._drafter == "code":
                raise asyncio.CancelledError

        monkeypatch.setattr(module.asyncio, "sleep", pause)
        with pytest.raises(asyncio.CancelledError):
            await replica._follow()
        return replica

    monkeypatch.setattr(Holder, "actor", lambda: settings)
    replica = asyncio.run(follow())
    assert replica._drafters == Drafters("code")
    assert problems == [
        "the settings cannot be read (ActorDiedError); the drafter stays",
        "the settings cannot be read (ActorUnavailableError); the drafter stays",
        None,
    ]
