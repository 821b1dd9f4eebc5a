"""The turns of a run, each saved when it ends, so that an interrupted run can continue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle.compiler.bench.statistics import Spread


@dataclass
class Record:
    """The results so far: ``turns[part][runner]`` holds one value per finished turn of that part.

    All runners of a part measure in every turn, one after the other, so that ratios paired per turn are meaningful.
    ``tokens`` are tokens per round, by part and runner.
    """

    path: Path
    turns: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    tokens: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> Record:
        """Open the record of these settings, with the finished turns of an earlier run unless ``fresh``."""
        text = json.dumps(settings, sort_keys=True)
        path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        record = cls(path)
        lines = path.read_text().splitlines(keepends=True) if path.is_file() and not fresh else [f"{text}\n"]
        whole = [line for line in lines if line.endswith("\n")]  # skip a line cut off by an interruption
        path.write_text("".join(whole))
        for line in whole[1:]:
            record._take(**json.loads(line))
        return record

    def done(self, part: str) -> int:
        """Return the number of finished turns of a part."""
        return max(map(len, self.turns.get(part, {}).values()), default=0)

    def add(self, part: str, values: Mapping[str, float], tokens: Mapping[str, float] | None = None) -> None:
        """Save a finished turn: a value per runner, and the tokens per round of those that draft."""
        turn = {"part": part, "values": dict(values), "tokens": dict(tokens or {})}
        with self.path.open("a") as file:
            file.write(json.dumps(turn) + "\n")
        self._take(part, values, tokens or {})

    def spread(self, part: str, runner: str) -> Spread | None:
        """Return the values of a runner, or None if it was not measured."""
        values = self.turns.get(part, {}).get(runner)
        return Spread.of(values) if values else None

    def ratio(self, part: str, runner: str, other: str) -> Spread | None:
        """Return the ratios of two runners, turn by turn, or None if one was not measured."""
        both = self.turns.get(part, {})
        if runner not in both or other not in both:
            return None
        return Spread.of([a / b for a, b in zip(both[runner], both[other], strict=True)])

    def _take(self, part: str, values: Mapping[str, float], tokens: Mapping[str, float]) -> None:
        for kept, new in ((self.turns, values), (self.tokens, tokens)):
            for runner, value in new.items():
                kept.setdefault(part, {}).setdefault(runner, []).append(value)
