"""Text output of a record: the results of every part, and ratios beside their targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from peagle.compiler.bench.statistics import Spread

from .aims import (
    AT_ONCE,
    GREEDY,
    LONG,
    MEMORY,
    PASSES,
    PROMPTS,
    SAMPLED,
    SIZES,
    SMALL,
    WEIGHTS,
    WINDOWS,
    Aim,
    aims,
)  # fmt: skip
from .record import Record

_TITLES = {
    GREEDY: "HumanEval prompts, greedy: tokens/s",
    SAMPLED: "HumanEval prompts, temperature 0.8: tokens/s",
    LONG: "after 1,500 tokens of code, greedy: tokens/s",
    AT_ONCE: "concurrent requests, plain: total tokens/s",
    PASSES: "one pass of a target: milliseconds",
    SMALL: "the demo pair in FP32: tokens/s",
}


def report(record: Record) -> str:
    """Return the complete report."""
    parts = [_part(record, part) for part in _TITLES if record.done(part)]
    parts += [_runtimes(record)] if record.done(WINDOWS) else []
    return "\n\n".join([*parts, _aims(record)] if parts else ["no measurements yet"])


def _runtimes(record: Record) -> str:
    """Return one row per runtime, with what decides its speed beside its quality."""
    names = [*dict.fromkeys([*record.turns.get(GREEDY, {}), *record.turns.get(PROMPTS, {})])]
    width = max(map(len, names)) + 2
    memory = record.spread(MEMORY, "GB/s")
    lines = [f"all runtimes; memory {_number(memory.median)} GB/s" if memory else "all runtimes"]
    titles = ("tokens/s", "prompt of 512", "5 over 1", "8 over 1", "perplexity", "MB a token")
    lines += [" " * width + "".join(f"{title:>15}" for title in titles)]
    for name in names:
        one = f"{name}, 1 column"
        found = [record.spread(GREEDY, name), record.spread(PROMPTS, name)]
        found += [record.ratio(WINDOWS, f"{name}, {columns} columns", one) for columns in (5, 8)]
        cells = [*map(_median, found), _median(record.spread(WEIGHTS, name)), _median(record.spread(SIZES, name))]
        lines.append(f"{name:{width}}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def _median(spread: Spread | None) -> str:
    return _number(spread.median) if spread else "-"


def _part(record: Record, part: str) -> str:
    runners = [*record.turns[part]]
    width = max(map(len, runners)) + 2
    turns = record.done(part)
    lines = [f"{_TITLES[part]}; {turns} turn{'s' * (turns != 1)}"]
    lines += [f"{'':{width}}{'median':>9}{'quartiles':>18}{'ratio':>8}{'tokens/round':>16}"]
    for runner in runners:
        spread, ratio = record.spread(part, runner), record.ratio(part, runner, _other(part, runner, runners))
        per_round = record.tokens.get(part, {}).get(runner)
        if spread and ratio:
            lines.append(
                f"{runner:{width}}{_number(spread.median):>9}{_range(spread):>18}{ratio.median:>8.2f}"
                f"{f'{statistics.mean(per_round):.2f}' if per_round else '-':>16}"
            )
    return "\n".join(lines)


def _other(part: str, runner: str, runners: list[str]) -> str:
    """Return the baseline of a runner: for passes, the one over a single row; otherwise the part's first runner."""
    return f"{runner.rpartition(', ')[0]}, 1 column" if part == PASSES else runners[0]


def _aims(record: Record) -> str:
    found = aims(record)
    if not found:
        return "no ratio with a target was measured"
    width = max(len(aim.what) for aim in found) + 2
    return "\n".join(["ratios paired per turn, beside their targets", *_rows(found, width)])


def _rows(found: list[Aim], width: int) -> Iterator[str]:
    for aim in found:
        sign = "<=" if aim.is_most else ">="
        line, met = f"{sign} {aim.line:.1f}", "yes" if aim.is_met else "NO"
        yield f"{aim.what:{width}}{aim.found.median:>6.2f}{_range(aim.found):>18}{line:>9}  {met}"


def _range(spread: Spread) -> str:
    return f"{_number(spread.low)} to {_number(spread.high)}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
