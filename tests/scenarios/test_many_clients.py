"""Many clients at once, who stream, go away, and send nonsense."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from dataclasses import dataclass, field

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import Limits, ServerSettings
from tests.engines.serving.calls import call
from tests.fixtures.servers import MODEL

PROMPTS = ("def count_vowels(text):\n", "class Stack:\n", "import os\n\n", "for i in range(10):\n    ", "# A prime is")


@dataclass
class Client:
    """One of many: asks again and again until ``until``, and keeps what was not as it must be."""

    server: Server
    alone: dict[tuple[int, int], str]  # the text of a prompt and a seed without neighbours
    seed: int
    until: float
    finished: int = 0
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        chance = random.Random(self.seed)
        while time.monotonic() < self.until:
            try:
                self._once(chance)
            except Exception as error:
                self.wrong.append(repr(error))

    def _once(self, chance: random.Random) -> None:
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
        prompt, seed, leaves = chance.randrange(len(PROMPTS)), chance.randrange(2), chance.random() < 0.3
        body = {"prompt": PROMPTS[prompt], "max_tokens": 24, "temperature": 0.8, "seed": seed, "stream": True,
                "num_speculative_tokens": chance.choice((None, 0, 2))}  # fmt: skip
        if chance.random() < 0.15:
            body["temperature"] = "warm"
        try:
            connection.request("POST", "/v1/completions", json.dumps(body))
            response = connection.getresponse()
            if response.status != 200:
                expected = {400} if body["temperature"] == "warm" else {429}
                if response.status not in expected:
                    self.wrong.append(f"{response.status}: {response.read()!r}")
                return
            text = ""
            for line in response:
                if line.startswith(b"data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                if leaves and len(text) > 4:
                    return
            if text != self.alone[prompt, seed]:
                self.wrong.append(f"{text!r} instead of {self.alone[prompt, seed]!r}")
            self.finished += 1
        finally:
            connection.close()


def _crowd(engine: Engine, seconds: float, clients: int) -> list[Client]:
    alone = {
        (at, seed): engine.generate([prompt], SamplingParams(max_tokens=24, temperature=0.8, seed=seed))[0].text
        for at, prompt in enumerate(PROMPTS)
        for seed in range(2)
    }
    server = Server(engine, ServerSettings(MODEL, limits=Limits()), port=0)
    server.start()
    try:
        crowd = [Client(server, alone, seed, time.monotonic() + seconds) for seed in range(clients)]
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


def test_every_answer_among_many_is_the_answer_alone(served_engine: Engine) -> None:
    _check(served_engine, _crowd(served_engine, seconds=2, clients=8))


@pytest.mark.slow
def test_two_minutes_of_sixteen_clients_lose_no_slot_and_no_memory(served_engine: Engine) -> None:
    import resource

    _crowd(served_engine, seconds=10, clients=16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _check(served_engine, _crowd(served_engine, seconds=120, clients=16))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 64 * 1024  # KiB
