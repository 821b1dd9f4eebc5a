"""Many concurrent clients that request all kinds of answers, stream, disconnect, and send invalid requests."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import Limits, ServerSettings
from tests.engines.serving.calls import call
from tests.fixtures.servers import MODEL, serving
from tests.traffic import PROMPTS, Answer, Asked, Client, answers_alone

pytest.importorskip("llguidance")


def _crowd(engine: Engine, alone: dict[Asked, Answer], seconds: float, clients: int) -> list[Client]:
    server = Server(engine, ServerSettings(MODEL, limits=Limits()), port=0)
    server.start()
    address = server.host, server.port
    try:
        alone.update({} if alone else answers_alone(address))
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
        alone, stops = answers_alone(address), threading.Event()
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
