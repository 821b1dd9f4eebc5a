"""Metrics of all replicas in one text, and the comparison of the drafters that they use."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (.*)")


def merged(texts: Mapping[str, str]) -> str:
    """Return the series of all replicas in Prometheus's text format, each with its replica's name as a label."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = defaultdict(list)
    for replica, text in texts.items():
        family, own = "", {}
        for line in text.splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                own[family] = [line]
            elif line.startswith("#"):
                own[family].append(line)
            elif (sample := _SAMPLE.fullmatch(line)) is not None:
                name, labels, value = sample.groups()
                samples[family].append(f'{name}{{replica="{replica}"{"," + labels if labels else ""}}} {value}')
        heads = own | heads
    return "".join("\n".join([*head, *samples[family]]) + "\n" for family, head in heads.items())


@dataclass(frozen=True)
class Tally:
    """Counts of finished requests.

    The first token of a request belongs to no round, so ``tokens`` are those after it. ``seconds`` are the time of
    these, summed over the requests. ``drafted_rounds`` had drafts, of which ``accepted`` were.
    """

    requests: float = 0
    tokens: float = 0
    rounds: float = 0
    drafted_rounds: float = 0
    accepted: float = 0
    seconds: float = 0

    @classmethod
    def of(cls, text: str) -> Tally:
        """Read the counts from a server's metrics."""
        totals: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] += sample.value
        requests = totals["vllm:request_generation_tokens_count"]
        return cls(
            requests,
            totals["vllm:request_generation_tokens_sum"] - requests,
            totals["peagle:num_rounds_total"],
            totals["vllm:spec_decode_num_drafts_total"],
            totals["vllm:spec_decode_num_accepted_tokens_total"],
            totals["vllm:request_decode_time_seconds_sum"],
        )

    def __add__(self, other: Tally) -> Tally:
        """Return the counts of both."""
        ours, theirs = asdict(self), asdict(other)
        return Tally(*(ours[name] + theirs[name] for name in ours))

    def __sub__(self, other: Tally) -> Tally:
        """Return the counts since ``other``."""
        ours, theirs = asdict(self), asdict(other)
        return Tally(*(ours[name] - theirs[name] for name in ours))

    @property
    def figures(self) -> dict[str, float | None]:
        """The figures to compare; None where nothing was counted."""
        return {
            "requests": self.requests,
            "acceptance_length": _ratio(self.drafted_rounds + self.accepted, self.drafted_rounds),
            "tokens_per_round": _ratio(self.tokens, self.rounds),
            "tokens_per_second": _ratio(self.tokens, self.seconds),
        }


@dataclass(frozen=True)
class Report:
    """The state of a replica, and what it has counted since it began to use its drafter.

    ``problem`` says why it does not use the drafter that it should.
    """

    replica: str
    engine: str
    drafter: str
    tally: Tally
    problem: str | None = None


def comparison(reports: Iterable[Report]) -> dict[str, Any]:
    """Return the replicas, and the figures of each drafter over all replicas that use it, ready for JSON."""
    by_drafter: dict[str, list[Report]] = defaultdict(list)
    for report in sorted(reports, key=lambda report: report.replica):
        by_drafter[report.drafter].append(report)
    return {
        "drafters": [
            {"drafter": drafter, "replicas": len(its), **sum((each.tally for each in its), Tally()).figures}
            for drafter, its in sorted(by_drafter.items())
        ],
        "replicas": [
            {"replica": each.replica, "engine": each.engine, "drafter": each.drafter, **each.tally.figures}
            | ({"problem": each.problem} if each.problem else {})
            for its in by_drafter.values()
            for each in its
        ],
    }


def _ratio(amount: float, count: float) -> float | None:
    return round(amount / count, 3) if count else None
