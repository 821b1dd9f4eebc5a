"""Measure the gaps of a stream while a long prompt is prefilled, and the first tokens of this and of a short prompt.

    python benchmarks/arrivals.py ENGINE_DIR [--prompt-tokens 7900] [--short-tokens 200] [--limits time,128] [--turns 3]

A stream runs; then a request with a long prompt joins, and soon after it one with a short prompt. ``--limits`` are the
values of ``max_prefill_tokens`` to compare, which take turns; ``time`` is the default of engines, None. Gaps are given
in rounds: the median gap at the same place of the same stream alone, which runs afterwards, because rounds take longer
as the text grows. The last lines give the time to first token of the long
prompt on an idle engine, and when all but its last token is cached.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from peagle.engines import Engine, SamplingParams, Submission

BEFORE = 50  # gaps of the stream before the prompts come
NEAR = 25  # gaps on either side whose median is a round
BETWEEN = 1.0  # seconds between the long and the short prompt
STREAM = [5, 9, 30, 7]  # its prompt
FEW, MANY = (SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 8000))


@dataclass
class Gaps:
    """Milliseconds of a round; gaps in rounds, of all turns and the largest of each; seconds until first tokens."""

    round: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    short: list[float] = field(default_factory=list)

    def row(self) -> str:
        """Return the medians, the 99th percentile and the largest gap, and the share of gaps above 4 rounds."""
        ordered = sorted(self.during)
        above = sum(gap > 4 for gap in ordered) / len(ordered)
        gaps = (statistics.median(ordered), ordered[int(0.99 * len(ordered))], statistics.median(self.largest))
        shown = "".join(f"{gap:>9.1f}" for gap in gaps)
        firsts = "".join(f"{statistics.median(each):>12.2f}" for each in (self.long, self.short))
        return f"{statistics.median(self.round):>9.2f}{shown}{above:>9.0%}{firsts}"


def measure(engine: Engine, long: Sequence[int], short: Sequence[int], gaps: Gaps) -> None:
    """Run one stream with both prompts."""
    stream = engine.submit(STREAM, MANY)
    _gaps(stream, BEFORE)
    came = time.perf_counter()
    newcomers = [engine.submit(long, FEW)]
    during: list[float] = []
    last = time.perf_counter()
    while not all(each.is_done for each in newcomers):
        new, last = _gaps(stream, 1, last)
        during += new
        if len(newcomers) == 1 and time.perf_counter() > came + BETWEEN:
            newcomers.append(engine.submit(short, FEW))
    stream.cancel()
    if len(newcomers) == 1:
        raise SystemExit(f"the long prompt was read within {BETWEEN} s: --prompt-tokens is too small for this machine")
    for firsts, newcomer in zip((gaps.long, gaps.short), newcomers, strict=True):
        result = newcomer.result()
        firsts.append(result.queue_seconds + result.prefill_seconds)
    stream.result()
    control = engine.submit(STREAM, MANY)
    alone, _ = _gaps(control, BEFORE + len(during) + NEAR)
    control.cancel()
    control.result()
    places = range(BEFORE, BEFORE + len(during))
    usual = [statistics.median(alone[max(at - NEAR, 0) : at + NEAR]) for at in places]
    rounds = [gap / round_seconds for gap, round_seconds in zip(during, usual, strict=True)]
    gaps.round.append(1000 * statistics.median(usual))
    gaps.during += rounds
    gaps.largest.append(max(rounds))


def _gaps(stream: Submission, count: int, last: float | None = None) -> tuple[list[float], float]:
    """Read some pieces of the stream; return the seconds between them and the time of the last."""
    gaps = []
    for _ in range(count):
        next(stream)
        now = time.perf_counter()
        if last is not None:
            gaps.append(now - last)
        last = now
    return gaps, last or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure gaps between tokens while a long prompt arrives.")
    parser.add_argument("engine", help="folder made by `peagle-compile build`")
    parser.add_argument("--prompt-tokens", type=int, default=7900)
    parser.add_argument("--short-tokens", type=int, default=200)
    parser.add_argument("--limits", default="time,128")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    numbers = random.Random(7)

    def prompt(tokens: int) -> list[int]:
        return [numbers.randrange(11, 911) for _ in range(tokens)]

    limits = arguments.limits.split(",")
    results = {limit: Gaps() for limit in limits}
    for _ in range(arguments.turns):
        long, short = prompt(arguments.prompt_tokens), prompt(arguments.short_tokens)
        for limit in limits:
            fixed = None if limit == "time" else int(limit)
            with Engine.load(arguments.engine, max_batch_size=3, check="sizes", max_prefill_tokens=fixed) as engine:
                engine.generate([prompt(4) for _ in range(6)], FEW)  # the caches of all rows get their memory
                measure(engine, long, short, results[limit])
    print(f"a stream; prompts of {arguments.prompt_tokens} and {arguments.short_tokens} tokens; gaps in rounds")
    columns = ("median", "99 %", "largest", "above 4")
    print(f"{'limit':>8}{'round ms':>9}{''.join(f'{each:>9}' for each in columns)}{'long s':>12}{'short s':>12}")
    for limit, gaps in results.items():
        print(f"{limit:>8}{gaps.row()}")
    with Engine.load(arguments.engine, check="sizes") as engine:
        engine.generate([prompt(4)], FEW)
        long = prompt(arguments.prompt_tokens)
        new, like = (engine.generate([[*long[:-1], last]], FEW)[0].prefill_seconds for last in (5, 6))
    print(f"the long prompt on an idle engine: {new:.2f} s; all but its last token cached: {like:.2f} s")


if __name__ == "__main__":
    main()
