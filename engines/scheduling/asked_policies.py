"""The policies of one round: each is asked once for all of its requests, and told what became of their drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..backends.base import Emission
from ..grammars.path import GrammarPath
from ..policy.drafts_per_round import Fixed, Policy, RoundAhead, RoundRow, RoundSeen
from ..running.request import Request


@dataclass(frozen=True)
class AskedPolicy:
    """One policy, the slots and grammars of its requests, and the K that it chose for them.

    Where a grammar forces more than K, so many as ``reach`` are verified.
    """

    policy: Policy
    slots: Sequence[int]
    grammars: Sequence[GrammarPath | None]
    ahead: RoundAhead
    k: int
    reach: int

    def tell(self, emission: Emission, num_tokens: np.ndarray, seconds: float | None) -> None:
        """Tell it of the round that emitted so many tokens by slot, 0 where a row was idle."""
        there = [at for at, slot in enumerate(self.slots) if num_tokens[slot]]
        ahead = self.ahead
        if len(there) < len(self.slots):
            ahead = replace(ahead, rows=[ahead.rows[at] for at in there])
        outcomes: list[tuple[int, Sequence[int]]] = []
        for at in there:
            slot, grammar = self.slots[at], self.grammars[at]
            drafted, accepted = emission.drafted[slot], int(num_tokens[slot]) - 1
            if grammar is not None:  # what it forced says nothing of who drafts
                drafted, accepted = grammar.judged, min(accepted, grammar.judged)
            outcomes.append((drafted, emission.nodes.get(slot, range(accepted))))
        widest = max((emission.drafted[self.slots[at]] for at in there), default=0)
        self.policy.learn(RoundSeen(ahead, self.k, outcomes, seconds, widest))


def asked_of(slots: Sequence[Request | None]) -> list[AskedPolicy]:
    """Ask the policies of all requests that run."""
    running = [(slot, request) for slot, request in enumerate(slots) if request is not None]
    policies = {id(request.policy): request.policy for _, request in running}
    on_host = any(request.choice is not None for _, request in running)
    asked = []
    for policy in policies.values():
        mine = [(slot, request) for slot, request in running if request.policy is policy]
        others = (each.most for each in policies.values() if each is not policy and isinstance(each, Fixed))
        grammars = [request.choice.grammar if request.choice else None for _, request in mine]
        rows = [_row(request, grammar, policy) for (_, request), grammar in zip(mine, grammars, strict=True)]
        ahead = RoundAhead(rows, len(running), max(others, default=0), on_host)
        k = policy.choose(ahead)
        asked.append(AskedPolicy(policy, [slot for slot, _ in mine], grammars, ahead, k, policy.reach(ahead, k)))
        for grammar in filter(None, grammars):
            grammar.reach = asked[-1].reach
    return asked


def _row(request: Request, grammar: GrammarPath | None, policy: Policy) -> RoundRow:
    if grammar is None or isinstance(policy, Fixed):
        return RoundRow(request, request.strategy)
    return RoundRow(request, request.strategy, min(len(grammar.forced()), policy.most), grammar.trust)


def first_k(request: Request, running: int) -> int:
    """How many drafts follow the prompt of a request that is to join those that run."""
    row = RoundRow(request, request.strategy)
    return request.policy.choose(RoundAhead([row], running + 1, on_host=request.choice is not None))


def emitted_of(asked: Sequence[AskedPolicy], num_slots: int) -> list[int]:
    """The most tokens that a round brings each slot."""
    most = [1] * num_slots
    for each in asked:
        for slot, grammar in zip(each.slots, each.grammars, strict=True):
            most[slot] = 1 + (each.k if grammar is None else max(each.k, each.reach))
    return most


def limits_of(asked: Sequence[AskedPolicy], num_slots: int) -> list[int]:
    """The most drafts that each slot verifies."""
    limits = [0] * num_slots
    for each in asked:
        for slot in each.slots:
            limits[slot] = each.k
    return limits
