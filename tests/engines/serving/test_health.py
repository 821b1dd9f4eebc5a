"""Health checks over HTTP, with tokens from the engine."""

from __future__ import annotations

import asyncio
import time

import pytest
from starlette.requests import Request

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.app import create_app
from peagle.engines.serving.health import _canary, ping
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.engines.serving.state import ServerState
from tests.engines.serving.calls import call, error_of
from tests.fixtures.servers import MODEL

PROMPT = "def f(x):\n"


def test_health_has_a_token_written(server: Server) -> None:
    assert call(server, "GET", "/health")[0] == 200
    assert call(server, "GET", "/ping")[::2] == (200, b"")


def test_busy_server_is_healthy_while_tokens_flow(served_engine: Engine) -> None:
    state: ServerState = create_app(served_engine, ServerSettings(MODEL)).state.server
    params = SamplingParams(max_tokens=300, ignore_eos=True)
    running = [served_engine.submit("a", params) for _ in range(3 + 8)]  # slots, and places to wait

    async def asked() -> None:
        canary = _canary(state)
        await asyncio.sleep(0.05)
        assert not canary.done()
        state.metrics.note_token()
        await canary

    asyncio.run(asked())
    for submission in running:
        submission.cancel()


def test_a_ping_is_answered_soon_by_when_the_last_token_came(
    served_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(served_engine, ServerSettings(MODEL))
    state: ServerState = app.state.server
    request = Request({"type": "http", "app": app, "method": "GET", "path": "/ping", "headers": []})
    monkeypatch.setattr("peagle.engines.serving.health.PING_SECONDS", 0.01)
    goes_on = asyncio.Event()

    async def slowly(state: ServerState) -> None:
        await goes_on.wait()
        raise HttpRefusal(503, "generated no token")

    async def asked() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("peagle.engines.serving.health._write_a_token", slowly)
            with pytest.raises(HttpRefusal, match="has not generated a token yet"):
                await ping(request)
            first = state.canary
            state.metrics.last_token = time.monotonic() - 10
            assert (await ping(request)).status_code == 200
            assert state.canary is first  # pings do not add up
            goes_on.set()
            await asyncio.sleep(0)
            with pytest.raises(HttpRefusal, match="generated no token"):
                await ping(request)
        monkeypatch.setattr("peagle.engines.serving.health.PING_SECONDS", 20.0)
        assert (await ping(request)).status_code == 200  # the engine's own answer

    asyncio.run(asked())


def test_an_engine_that_has_failed_is_not_healthy(served_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short a time ago a token was written."""
    server = Server(served_engine, ServerSettings(MODEL), port=0)
    server.start()
    assert call(server, "GET", "/health")[0] == call(server, "GET", "/ping")[0] == 200
    monkeypatch.setattr(served_engine._loop, "_failure", MemoryError("the device is gone"))
    for path in ("/health", "/ping"):
        status, _, content = call(server, "GET", path)
        assert status == 503
        assert "the device is gone" in error_of(content)["message"]
    assert call(server, "POST", "/v1/completions", {"prompt": PROMPT})[0] == 503
    monkeypatch.undo()
    assert call(server, "GET", "/health")[0] == 200
    server.stop(immediately=True)
    assert server.wait(10)
