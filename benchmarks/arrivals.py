"""Measure how evenly tokens arrive while a long prompt is read, for several prefill budgets per round.

    python benchmarks/arrivals.py ENGINE_DIR [--prompt-tokens 1500] [--budgets time,32,64,128,256,512,100000]

A stream runs; after some chunks, a request with a long prompt joins. The output has the stream's median gap alone,
before and after that (a round), its median and longest gap while the prompt is read, also in rounds, and the new
request's time to first token, also on an idle engine. The budget ``time`` is the engine's default; numbers are
``max_prefill_tokens``. Budgets take turns, and columns are medians of the turns. With ``--cached``, the last line
compares a new prompt with one that differs from a cached prompt only in its last token (``prefix_cache_bytes``).
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise

from peagle.engines import Engine, SamplingParams, Submission
from peagle.engines.policy.drafts_per_round import NumSpeculativeTokens

ALONE = 30  # gaps of the stream that are measured before the prompt and after it, because its own text grows


@dataclass
class Gaps:
    """By turn: seconds between chunks of the stream, also in rounds, and until the new request's first token."""

    alone: list[float] = field(default_factory=list)
    longest_alone: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    during_rounds: list[float] = field(default_factory=list)
    longest_rounds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)


def measure(engine: Engine, prompt: list[int], gaps: Gaps, drafts: NumSpeculativeTokens) -> None:
    """Run one stream with one new request."""
    engine.generate([[5], [9]], SamplingParams(max_tokens=8, ignore_eos=True))  # the first token of a slot allocates
    params = SamplingParams(max_tokens=engine.max_seq_len - 5, ignore_eos=True)
    stream = engine.submit([5, 9, 30, 7], params, num_speculative_tokens=drafts)
    before = _gaps(stream, 2 * ALONE)[ALONE:]
    came = last = time.perf_counter()
    newcomer = engine.submit(prompt, SamplingParams(max_tokens=1, ignore_eos=True), num_speculative_tokens=drafts)
    during = []
    while not newcomer.is_done:
        now = _next(stream)
        during.append(now - last)
        last = now
    result = newcomer.result()
    alone = [*before, *_gaps(stream, ALONE)]
    stream.cancel()
    usual = statistics.median(alone)
    gaps.alone.append(usual)
    gaps.longest_alone.append(max(alone))
    gaps.during.append(statistics.median(during))
    gaps.longest.append(max(during))
    gaps.during_rounds.append(gaps.during[-1] / usual)
    gaps.longest_rounds.append(gaps.longest[-1] / usual)
    gaps.first.append(min(result.queue_seconds + result.prefill_seconds, last - came))
    stream.result()


def kept(path: str, prompt: list[int]) -> tuple[float, float]:
    """Return the seconds for a new prompt, and for one that differs from it in the last token."""
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    with Engine.load(path, check="sizes", prefix_cache_bytes=2**30) as engine:
        new, like = (engine.generate([[*prompt[:-1], last]], params)[0].prefill_seconds for last in (5, 6))
    return new, like


def _gaps(stream: Submission, count: int) -> list[float]:
    times = [_next(stream) for _ in range(count + 1)]
    return [after - before for before, after in pairwise(times)]


def _next(stream: Submission) -> float:
    next(stream)
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure gaps between tokens while a long prompt arrives.")
    parser.add_argument("engine", help="folder made by `peagle-compile build`")
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--budgets", default="time,32,64,128,256,512,100000")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--drafts", type=int, help="drafts per round; default: the engine's choice")
    parser.add_argument("--cached", action="store_true", help="also measure a prompt that is cached but for one token")
    arguments = parser.parse_args()
    budgets = arguments.budgets.split(",")
    drafts: NumSpeculativeTokens = "auto" if arguments.drafts is None else arguments.drafts
    engine = Engine.load(arguments.engine, max_batch_size=2, check="sizes")
    prompt = [11 + number % 900 for number in range(arguments.prompt_tokens)]
    idle = engine.generate([prompt], SamplingParams(max_tokens=1, ignore_eos=True), num_speculative_tokens=drafts)[0]
    results = {budget: Gaps() for budget in budgets}
    for _ in range(arguments.turns):
        for budget in budgets:
            engine.close()
            most = None if budget == "time" else int(budget)
            engine = Engine.load(arguments.engine, max_batch_size=2, check="sizes", max_prefill_tokens=most)
            measure(engine, prompt, results[budget], drafts)
    alone = 1000 * idle.prefill_seconds
    print(f"a prompt of {len(prompt)} tokens joins a stream; milliseconds; idle engine: {alone:.0f}")
    heads = ("budget", "alone", "longest", "while read", "longest", "in rounds", "longest", "first token")
    print("".join(f"{head:>12}" for head in heads))
    for budget, gaps in results.items():
        times = (gaps.alone, gaps.longest_alone, gaps.during, gaps.longest)
        cells = [f"{1000 * statistics.median(column):.1f}" for column in times]
        cells += [f"{statistics.median(column):.1f}" for column in (gaps.during_rounds, gaps.longest_rounds)]
        print("".join(f"{cell:>12}" for cell in (budget, *cells, f"{1000 * statistics.median(gaps.first):.0f}")))
    engine.close()
    if arguments.cached:
        new, like = (1000 * seconds for seconds in kept(arguments.engine, prompt))
        print(f"not cached {new:.0f}; all but the last token cached {like:.0f}")


if __name__ == "__main__":
    main()
