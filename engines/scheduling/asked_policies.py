"""The policies of one round: each is asked once for all of its requests, and told what became of their drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..backends.base import Emission
from ..policy.drafts_per_round import Fixed, Policy, RoundAhead, RoundRow, RoundSeen
from ..requests.request import Request


@dataclass(frozen=True)
class AskedPolicy:
    """One policy, the slots of its requests, and the K that it chose for them."""

    policy: Policy
    slots: Sequence[int]
    ahead: RoundAhead
    k: int

    def tell(self, emission: Emission, num_tokens: np.ndarray, seconds: float | None) -> None:
        """Tell it of the round that emitted so many tokens by slot, 0 where a row was idle."""
        there = [at for at, slot in enumerate(self.slots) if num_tokens[slot]]
        ahead = self.ahead
        if len(there) < len(self.slots):
            ahead = replace(ahead, rows=[ahead.rows[at] for at in there])
        outcomes: list[tuple[int, Sequence[int]]] = []
        for slot in (self.slots[at] for at in there):
            accepted = range(int(num_tokens[slot]) - 1)
            outcomes.append((emission.drafted[slot], emission.nodes.get(slot, accepted)))
        self.policy.learn(RoundSeen(ahead, self.k, outcomes, seconds))


def asked_of(slots: Sequence[Request | None]) -> list[AskedPolicy]:
    """Ask the policies of all requests that run."""
    running = [(slot, request) for slot, request in enumerate(slots) if request is not None]
    policies = {id(request.policy): request.policy for _, request in running}
    on_host = any(request.choice is not None for _, request in running)
    asked = []
    for policy in policies.values():
        mine = [(slot, request) for slot, request in running if request.policy is policy]
        others = (each.most for each in policies.values() if each is not policy and isinstance(each, Fixed))
        rows = [RoundRow(request, request.strategy) for _, request in mine]
        ahead = RoundAhead(rows, len(running), max(others, default=0), on_host)
        asked.append(AskedPolicy(policy, [slot for slot, _ in mine], ahead, policy.choose(ahead)))
    return asked


def first_k(request: Request, running: int) -> int:
    """How many drafts follow the prompt of a request that is to join those that run."""
    row = RoundRow(request, request.strategy)
    return request.policy.choose(RoundAhead([row], running + 1, on_host=request.choice is not None))


def limits_of(asked: Sequence[AskedPolicy], num_slots: int) -> list[int]:
    """The most drafts that each slot verifies."""
    limits = [0] * num_slots
    for each in asked:
        for slot in each.slots:
            limits[slot] = each.k
    return limits
