"""Measure how rounds without drafts settle after rounds with drafts, and rounds with drafts after rounds without.

    chrt -f 10 python benchmarks/after_drafts.py ENGINE [--k 4]

Within each text, rounds with drafts and rounds without take turns, 48 at a time. The table has the median time of the
rounds by their number since the last change.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace

from peagle.compiler.bundled.prompts import question_ids, questions
from peagle.engines import Engine, SamplingParams
from peagle.engines.policy.drafts_per_round import ObservedRound, RoundAhead

ROUNDS, TOKENS = 48, 320
SHOWN = (1, 2, 4, 8, 16, 32, 47)


@dataclass
class Turns:
    """A policy that drafts ``max_drafts`` tokens and none in turns, and times its rounds."""

    max_drafts: int
    rounds: int = 0
    seconds: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def counts(self) -> tuple[int, ...]:
        return (0, self.max_drafts)

    def choose(self, ahead: RoundAhead) -> int:
        del ahead
        return self.max_drafts * (self.rounds // ROUNDS % 2)

    def reach(self, ahead: RoundAhead, k: int) -> int:
        del ahead
        return k

    def learn(self, observed: ObservedRound) -> None:
        if observed.seconds is not None and observed.verified == observed.k:
            self.seconds[observed.k, self.rounds % ROUNDS].append(observed.seconds)
        self.rounds += 1


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--k", type=int, default=4, help="drafts per round; default: %(default)s")
    parser.add_argument("--texts", type=int, default=8, help="default: %(default)s")
    arguments = parser.parse_args()
    turns = Turns(arguments.k)
    with Engine.load(arguments.engine, check="sizes", prefix_cache_bytes=0) as engine:
        how = replace(engine._factory.decoding(), policy=turns)
        for question in questions()[: arguments.texts]:
            turns.rounds = 0
            engine._generate([question_ids(engine, question)], SamplingParams(max_tokens=TOKENS, ignore_eos=True), how)
    print(f"{'round after a change':24}" + "".join(f"{each:>10}" for each in SHOWN))
    for k in turns.counts:
        medians = (statistics.median(turns.seconds[k, each]) * 1e3 for each in SHOWN)
        print(f"{f'K = {k}':24}" + "".join(f"{f'{each:.2f} ms':>10}" for each in medians))


if __name__ == "__main__":
    main()
