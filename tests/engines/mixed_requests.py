"""Prompts, sampling parameters and draft counts of every kind, for tests that requests do not affect each other."""

from __future__ import annotations

import random
from collections.abc import Sequence

from peagle.engines import SamplingParams
from peagle.engines.policy.drafts_per_round import ObservedRound, RoundAhead

PROMPTS = [[5, 9, 30, 7], [11] * 17, [40], list(range(2, 35)), [80, 3]]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.8, seed=11)
MIXED = [
    GREEDY,
    SAMPLED,
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=30, temperature=1.3, top_k=12, top_p=0.9, seed=1),
    SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, min_p=0.05, seed=3),
]


class Dice:
    """A policy that returns random K, the same ones in every run."""

    def __init__(self, seed: int, max_drafts: int) -> None:
        self._dice, self.max_drafts = random.Random(seed), max_drafts

    @property
    def counts(self) -> Sequence[int]:
        return range(self.max_drafts + 1)

    def reach(self, ahead: RoundAhead, k: int) -> int:
        return k

    def learn(self, seen: ObservedRound) -> None:
        pass

    def choose(self, ahead: RoundAhead) -> int:
        return self._dice.randint(0, self.max_drafts)
