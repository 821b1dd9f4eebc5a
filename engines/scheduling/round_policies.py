"""The draft policies of one round: each chooses one K for all of its requests, and learns from the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..draft_methods.lanes import Emission
from ..grammars.path import GrammarPath
from ..policy.drafts_per_round import Fixed, Policy, RoundAhead, RoundRow, learn_from
from ..running.request import Request


@dataclass(frozen=True)
class RoundPolicy:
    """One policy, the slots and grammars of its requests, and the K that it chose for them.

    If a grammar forces more than K tokens, up to ``reach`` drafts are verified.
    """

    policy: Policy
    slots: Sequence[int]
    grammars: Sequence[GrammarPath | None]
    ahead: RoundAhead
    k: int
    reach: int

    def learn(self, emission: Emission, num_tokens: np.ndarray, seconds: float | None) -> None:
        """Report the round, which emitted ``num_tokens`` by slot, 0 for idle rows."""
        outcomes: list[tuple[int, Sequence[int]] | None] = []
        for slot, grammar in zip(self.slots, self.grammars, strict=True):
            drafted, accepted = emission.drafted[slot], int(num_tokens[slot]) - 1
            if accepted < 0:
                outcomes.append(None)
                continue
            if grammar is not None:  # forced drafts say nothing about the drafter
                drafted, accepted = grammar.judged, min(accepted, grammar.judged)
            outcomes.append((drafted, emission.nodes.get(slot, range(accepted))))
        there = zip(self.slots, outcomes, strict=True)
        widest = max((emission.drafted[slot] for slot, outcome in there if outcome is not None), default=0)
        learn_from(self.policy, self.ahead, self.k, outcomes, seconds, widest)


def choose_drafts(slots: Sequence[Request | None]) -> list[RoundPolicy]:
    """Return the choices of all running requests' policies for a round."""
    running = [(slot, request) for slot, request in enumerate(slots) if request is not None]
    policies = {id(request.policy): request.policy for _, request in running}
    on_host = any(request.choice is not None for _, request in running)
    chosen: list[RoundPolicy] = []
    for policy in policies.values():
        mine = [(slot, request) for slot, request in running if request.policy is policy]
        others = (each.most for each in policies.values() if each is not policy and isinstance(each, Fixed))
        grammars = [request.choice.grammar if request.choice else None for _, request in mine]
        rows = [_row(request, grammar, policy) for (_, request), grammar in zip(mine, grammars, strict=True)]
        least = min(max(others, default=0), policy.most)  # those of another drafter may have room for more
        ahead = RoundAhead(rows, len(running), least, on_host)
        k = policy.choose(ahead)
        chosen.append(RoundPolicy(policy, [slot for slot, _ in mine], grammars, ahead, k, policy.reach(ahead, k)))
        for grammar in filter(None, grammars):
            grammar.reach = chosen[-1].reach
    return chosen


def _row(request: Request, grammar: GrammarPath | None, policy: Policy) -> RoundRow:
    if grammar is None or isinstance(policy, Fixed):
        return RoundRow(request, request.method.name)
    return RoundRow(request, request.method.name, min(len(grammar.forced()), policy.most), grammar.trust)


def first_k(request: Request, running: int) -> int:
    """Return the number of drafts after the prompt of a request that joins ``running`` others."""
    row = RoundRow(request, request.method.name)
    return request.policy.choose(RoundAhead([row], running + 1, on_host=request.choice is not None))


def most_emitted(policies: Sequence[RoundPolicy], num_slots: int) -> list[int]:
    """Return the maximum number of tokens that a round emits, by slot."""
    most = [1] * num_slots
    for each in policies:
        for slot, grammar in zip(each.slots, each.grammars, strict=True):
            most[slot] = 1 + (each.k if grammar is None else max(each.k, each.reach))
    return most


def draft_limits(policies: Sequence[RoundPolicy], num_slots: int) -> list[int]:
    """Return the maximum number of verified drafts, by slot."""
    limits = [0] * num_slots
    for each in policies:
        for slot in each.slots:
            limits[slot] = each.k
    return limits
