"""Generations, abandoned streams and repeated loads do not leak memory."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from tests.fixtures.attacks import Size

pytestmark = pytest.mark.begins_first

MEGABYTE = 1 << 20
# Average bytes that one more may cost, beyond the few pages that the allocator occasionally takes.
_EACH = {"generation": 2_000, "stream": 10_000, "request": 2_000, "load": 150_000}
_SLACK = 6 * MEGABYTE


def _resident() -> int:
    gc.collect()
    gc.freeze()  # the next collection skips what is there now
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _growth(step: Callable[[int], object], warm_up: int, times: int) -> int:
    """Bytes by which the process grew in so many steps, after some that are not counted."""
    for number in range(warm_up):
        step(number)
    before = _resident()
    for number in range(times):
        step(number)
    return _resident() - before


def _require_flat(what: str, step: Callable[[int], object], warm_up: int, times: int) -> None:
    growth = _growth(step, warm_up, times)
    print(f"{times} times a {what}: {growth / MEGABYTE:+.1f} MB")
    assert growth < _SLACK + times * _EACH[what], f"{times} times a {what}: {growth / MEGABYTE:.1f} MB"


def _generation(engine: Engine) -> Callable[[int], object]:
    def step(number: int) -> object:
        sampled = {"temperature": 0.9, "seed": number} if number % 2 else {}
        params = SamplingParams(max_tokens=1 + number % 30, ignore_eos=True, **sampled)  # type: ignore[arg-type]
        prompts = [[5, 9, number % 90], [7] * (1 + number % 40)][: 1 + number % 2]
        return engine.generate(prompts, params, num_speculative_tokens=number % 5)

    return step


def _stream(engine: Engine) -> Callable[[int], object]:
    def step(number: int) -> object:
        stream = iter(engine.stream([5, 9, number % 90], SamplingParams(max_tokens=40, ignore_eos=True)))
        return [next(stream) for _ in range(1 + number % 3)]

    return step


def _request(engine: Engine) -> Callable[[int], object]:
    """Run one of many: some are read, some are cancelled, some are abandoned, while others run."""

    def step(number: int) -> object:
        params = SamplingParams(max_tokens=1 + number % 4, ignore_eos=True)
        submission = engine.submit([5, number % 90], params, num_speculative_tokens=number % 5)
        if number % 7 == 0:
            submission.cancel()
        return submission.result() if number % 3 == 0 else next(submission) if number % 3 == 1 else None

    return step


def test_memory_stays_flat(tiny_engine: Engine, tiny_folder: Path) -> None:
    _require_flat("generation", _generation(tiny_engine), 30, 80)
    _require_flat("stream", _stream(tiny_engine), 10, 25)
    _require_flat("request", _request(tiny_engine), 50, 500)
    _require_flat("load", lambda _: Engine.load(tiny_folder, threads=1), 6, 8)


@pytest.mark.slow
def test_memory_stays_flat_for_long(demo_engine: Path, attack_size: Size) -> None:
    """2,000 generations, 300 abandoned streams, 20,000 requests and 30 loads for 2,000 attacks."""
    engine = Engine.load(demo_engine, max_batch_size=2, threads=1, prefix_cache_bytes=_SLACK // 2)
    times = attack_size.attacks
    _require_flat("generation", _generation(engine), 50, times)
    _require_flat("stream", _stream(engine), 20, max(1, times * 3 // 20))
    _require_flat("request", _request(engine), 100, 10 * times)
    _require_flat("load", lambda _: Engine.load(demo_engine, threads=1), 20, max(1, times * 3 // 200))
