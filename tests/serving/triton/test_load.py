"""Eight concurrent clients of ``generate_stream``: every answer is correct, nothing crashes, and memory is stable."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from peagle.engines import Engine, SamplingParams
from tests.serving.triton.server_process import TritonProcess

pytestmark = pytest.mark.triton

CLIENTS = 8
PROMPTS = ("def count_vowels(text):\n", "class Stack:\n", "import os\n\n", "for i in range(10):\n    ", "# A prime is")
SEEDS = 3
# Bytes of all processes together: an engine alone takes some 40 MiB within its first five thousand requests, for shapes
# of batches that it keeps, and then none.
MAY_GROW = 32 << 20


@dataclass(frozen=True)
class Asked:
    """One request: a prompt, how it is drawn (seed 0: greedy), and how many drafts a round, None for the engine's."""

    prompt: str
    seed: int
    max_tokens: int
    drafts: int | None

    @property
    def params(self) -> SamplingParams:
        """What the engine is asked for."""
        drawn = {"temperature": 0.8, "seed": self.seed} if self.seed else {}
        return SamplingParams(max_tokens=self.max_tokens, **drawn)  # type: ignore[arg-type]

    def answer(self, server: TritonProcess) -> str:
        """What the server streams."""
        drawn = {"temperature": 0.8, "random_seed": self.seed} if self.seed else {}
        drafts = {} if self.drafts is None else {"num_speculative_tokens": self.drafts}
        answer = server.stream("demo", text_input=self.prompt, max_tokens=self.max_tokens, **drawn, **drafts)
        assert answer.status == 200, answer
        assert answer.events[-1]["finish_reason"] in ("length", "stop"), answer.events[-1]
        return answer.text


ASKED = [
    Asked(prompt, seed, max_tokens, drafts)
    for prompt in PROMPTS
    for seed in range(SEEDS)
    for max_tokens in (1, 24, 48)
    for drafts in (None, 0, 2)
]


def crowd(server: TritonProcess, wanted: dict[Asked, str], seconds: float) -> int:
    """Have eight clients ask one request after another; returns how many were answered, each as the engine does."""
    end = time.monotonic() + seconds

    def ask(number: int) -> int:
        chance, count = random.Random(number), 0
        while time.monotonic() < end:
            asked = chance.choice(ASKED)
            assert asked.answer(server) == wanted[asked], asked
            count += 1
        return count

    with ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(ask, range(CLIENTS)))


def settled(server: TritonProcess) -> float:
    """How many answers were whole, when all are counted that ended so far: that takes a moment."""

    def whole() -> float:
        return sum(server.counted("request_success_total", "demo", finished_reason=name) for name in ("length", "stop"))

    seen = [whole()]
    while len(seen) < 3 or len(set(seen[-3:])) > 1:
        time.sleep(0.2)
        seen.append(whole())
    return seen[-1]


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_eight_clients_at_once_get_right_answers_and_take_no_memory(
    triton: TritonProcess, served_engine: Engine, seconds: float
) -> None:
    outputs = served_engine.generate([asked.prompt for asked in ASKED], [asked.params for asked in ASKED])
    wanted = {asked: output.text for asked, output in zip(ASKED, outputs, strict=True)}
    began = settled(triton)
    warm = crowd(triton, wanted, seconds / 3)  # allocators and buffers grow to what they need
    before = triton.memory()
    count = crowd(triton, wanted, seconds)
    assert count > 2 * CLIENTS
    assert triton.memory() < before + MAY_GROW
    assert settled(triton) == began + warm + count
    assert triton.counted("num_requests_running", "demo") == 0
