"""The turns of a run, each written to a file when it is over, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value or more."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
        return cls(low, median, high)


@dataclass
class Record:
    """What was measured so far: ``turns[part][runner]`` are values, one for each finished turn of that part.

    All runners of a part measure in every turn, one after the other, so that values of one turn can be divided by one
    another. ``tokens`` are tokens a round, by part and runner.
    """

    path: Path
    turns: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    tokens: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> Record:
        """The record of these settings, with the turns that an earlier run of the same finished unless ``fresh``."""
        text = json.dumps(settings, sort_keys=True)
        path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        record = cls(path)
        lines = path.read_text().splitlines(keepends=True) if path.is_file() and not fresh else [f"{text}\n"]
        whole = [line for line in lines if line.endswith("\n")]  # not what was being written when it ended
        path.write_text("".join(whole))
        for line in whole[1:]:
            record._take(**json.loads(line))
        return record

    def done(self, part: str) -> int:
        """How many turns of a part are finished."""
        return max(map(len, self.turns.get(part, {}).values()), default=0)

    def add(self, part: str, values: Mapping[str, float], tokens: Mapping[str, float] | None = None) -> None:
        """Write a finished turn: a value for every runner, and of those that draft the tokens a round."""
        turn = {"part": part, "values": dict(values), "tokens": dict(tokens or {})}
        with self.path.open("a") as file:
            file.write(json.dumps(turn) + "\n")
        self._take(part, values, tokens or {})

    def spread(self, part: str, runner: str) -> Spread | None:
        """The values of a runner; None where it was not measured."""
        values = self.turns.get(part, {}).get(runner)
        return Spread.of(values) if values else None

    def ratio(self, part: str, runner: str, other: str) -> Spread | None:
        """A runner's values over another's, turn by turn; None where one was not measured."""
        both = self.turns.get(part, {})
        if runner not in both or other not in both:
            return None
        return Spread.of([a / b for a, b in zip(both[runner], both[other], strict=True)])

    def _take(self, part: str, values: Mapping[str, float], tokens: Mapping[str, float]) -> None:
        for kept, new in ((self.turns, values), (self.tokens, tokens)):
            for runner, value in new.items():
                kept.setdefault(part, {}).setdefault(runner, []).append(value)
