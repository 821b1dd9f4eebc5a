"""Measure how evenly tokens arrive while a long prompt is prefilled, for several prefill budgets per round.

    python benchmarks/arrivals.py ENGINE_DIR [--prompt-tokens 1500] [--budgets 32,64,128,256,512,100000]

A stream runs; after some chunks, a request with a long prompt joins. The output has the stream's median gap before, its
median and longest gap while the prompt is prefilled, and the new request's time to first token, also on an idle engine.
Budgets take turns, round by round. The last line compares a new prompt with one that differs from a cached prompt only
in its last token (``prefix_cache_bytes``).
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field

from peagle.engines import Engine, SamplingParams, Submission

BEFORE = 12  # chunks of the stream before the prompt arrives


@dataclass
class Gaps:
    """Seconds between chunks of the stream, and until the new request's first token."""

    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)


def measure(engine: Engine, prompt: list[int], gaps: Gaps) -> None:
    """Run one stream with one new request."""
    stream = engine.submit([5, 9, 30, 7], SamplingParams(max_tokens=1000, ignore_eos=True))
    last = _next(stream)
    for _ in range(BEFORE):
        now = _next(stream)
        gaps.before.append(now - last)
        last = now
    came = time.perf_counter()
    newcomer = engine.submit(prompt, SamplingParams(max_tokens=1, ignore_eos=True))
    during = []
    while not newcomer.is_done:
        now = _next(stream)
        during.append(now - last)
        last = now
    stream.cancel()
    result = newcomer.result()
    gaps.during += during
    gaps.longest.append(max(during))
    gaps.first.append(min(result.queue_seconds + result.prefill_seconds, time.perf_counter() - came))
    stream.result()


def kept(path: str, prompt: list[int]) -> tuple[float, float]:
    """Return the seconds for a new prompt, and for one that differs from it in the last token."""
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    with Engine.load(path, check="sizes", prefix_cache_bytes=2**30) as engine:
        new, like = (engine.generate([[*prompt[:-1], last]], params)[0].prefill_seconds for last in (5, 6))
    return new, like


def _next(stream: Submission) -> float:
    next(stream)
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure gaps between tokens while a long prompt arrives.")
    parser.add_argument("engine", help="folder made by `peagle-compile build`")
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--budgets", default="32,64,128,256,512,100000")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    budgets = [int(budget) for budget in arguments.budgets.split(",")]
    engine = Engine.load(arguments.engine, max_batch_size=2, check="sizes", prefix_cache_bytes=0)
    prompt = [11 + number % 900 for number in range(arguments.prompt_tokens)]
    idle = engine.generate([prompt], SamplingParams(max_tokens=1, ignore_eos=True))[0].prefill_seconds
    results = {budget: Gaps() for budget in budgets}
    for _ in range(arguments.turns):
        for budget in budgets:
            engine.close()
            engine = Engine.load(
                arguments.engine, max_batch_size=2, check="sizes", max_prefill_tokens=budget, prefix_cache_bytes=0
            )
            measure(engine, prompt, results[budget])
    print(f"a prompt of {len(prompt)} tokens joins a stream; milliseconds; idle engine: {1000 * idle:.0f}")
    print(f"{'budget':>8}{'gap before':>12}{'while read':>12}{'longest':>9}{'first token':>13}")
    for budget, gaps in results.items():
        columns = (gaps.before, gaps.during, gaps.longest, gaps.first)
        before, during, longest, first = (1000 * statistics.median(column) for column in columns)
        print(f"{budget:>8}{before:>12.1f}{during:>12.1f}{longest:>9.0f}{first:>13.0f}")
    engine.close()
    new, like = (1000 * seconds for seconds in kept(arguments.engine, prompt))
    print(f"not cached {new:.0f}; all but the last token cached {like:.0f}")


if __name__ == "__main__":
    main()
