"""A record for people: what was measured of every part, and the ratios beside what was aimed at."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from .aims import AT_ONCE, GREEDY, LONG, PASSES, SAMPLED, SMALL, Aim, aims
from .record import Record, Spread

_TITLES = {
    GREEDY: "HumanEval prompts, greedy: tokens/s",
    SAMPLED: "the same at temperature 0.8: tokens/s",
    LONG: "after 1,500 tokens of code, greedy: tokens/s",
    AT_ONCE: "requests at once, plain: tokens/s of all together",
    PASSES: "one pass of a target: milliseconds",
    SMALL: "the demo pair in FP32: tokens/s",
}


def report(record: Record) -> str:
    """Everything that was measured."""
    parts = [_part(record, part) for part in _TITLES if record.done(part)]
    return "\n\n".join([*parts, _aims(record)] if parts else ["nothing was measured"])


def _part(record: Record, part: str) -> str:
    runners = [*record.turns[part]]
    width = max(map(len, runners)) + 2
    turns = record.done(part)
    lines = [f"{_TITLES[part]}; {turns} turn{'s' * (turns != 1)}"]
    lines += [f"{'':{width}}{'median':>9}{'quartiles':>18}{'ratio':>8}{'tokens a round':>16}"]
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
    """What a runner is divided by: of passes the one over a single row, else the first of the part."""
    return f"{runner.rpartition(', ')[0]}, 1 row" if part == PASSES else runners[0]


def _aims(record: Record) -> str:
    found = aims(record)
    if not found:
        return "no ratio that is aimed at was measured"
    width = max(len(aim.what) for aim in found) + 2
    return "\n".join(["ratios within a turn, beside what is aimed at", *_rows(found, width)])


def _rows(found: list[Aim], width: int) -> Iterator[str]:
    for aim in found:
        sign = "<=" if aim.is_most else ">="
        line, met = f"{sign} {aim.line:.1f}", "yes" if aim.is_met else "NO"
        yield f"{aim.what:{width}}{aim.found.median:>6.2f}{_range(aim.found):>18}{line:>9}  {met}"


def _range(spread: Spread) -> str:
    return f"{_number(spread.low)} to {_number(spread.high)}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
