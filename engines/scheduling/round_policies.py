"""The draft policies of one round: each chooses one K for all of its requests, and learns from the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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

    def learn(self, emission: Emission, tokens: Sequence[Sequence[int]], seconds: float | None) -> None:
        """Report the round, which emitted ``tokens`` by slot, none for idle rows."""
        outcomes: list[tuple[int, Sequence[int]] | None] = []
        widest = 0
        for slot, grammar in zip(self.slots, self.grammars, strict=True):
            drafted, accepted = emission.drafted[slot], len(tokens[slot]) - 1
            if accepted < 0:
                outcomes.append(None)
                continue
            widest = max(widest, drafted)
            if grammar is not None:  # forced drafts say nothing about the drafter
                drafted, accepted = grammar.judged, min(accepted, grammar.judged)
            outcomes.append((drafted, emission.nodes.get(slot, range(accepted)) if drafted else ()))
        learn_from(self.policy, self.ahead, self.k, outcomes, seconds, widest)


class RoundPolicies:
    """The policies of the requests in ``slots``.

    Whatever the rounds of one set of requests share is computed once, because a round can take only two milliseconds.
    """

    def __init__(self, slots: Sequence[Request | None]) -> None:
        self._slots = slots
        self._requests: list[RoundPolicy] | None = None  # by policy, before it has chosen; None: other requests run
        self._joining = 0

    def slots_changed(self) -> None:
        """Forget the requests, some of which have ended or begun."""
        self._requests = None

    def choose(self, joining: int) -> list[RoundPolicy]:
        """Return the choices of all running requests' policies for a round; ``joining`` others will join soon."""
        if self._requests is None or self._joining != joining:
            self._joining, self._requests = joining, self._by_policy(joining)
        return [self._choice(requests) for requests in self._requests]

    def _by_policy(self, joining: int) -> list[RoundPolicy]:
        running = [(slot, request) for slot, request in enumerate(self._slots) if request is not None]
        policies = {id(request.policy): request.policy for _, request in running}
        on_host = any(request.choice is not None for _, request in running)
        found: list[RoundPolicy] = []
        for policy in policies.values():
            slots, requests = zip(*((slot, each) for slot, each in running if each.policy is policy), strict=True)
            others = (each.max_drafts for each in policies.values() if each is not policy and isinstance(each, Fixed))
            grammars = [request.choice.grammar if request.choice else None for request in requests]
            min_drafts = min(
                max(others, default=0), policy.max_drafts
            )  # those of another drafter may have room for more
            rows = [_row(request) for request in requests]
            ahead = RoundAhead(rows, len(running), min_drafts, on_host, joining)
            found.append(RoundPolicy(policy, slots, grammars, ahead, 0, 0))
        return found

    @staticmethod
    def _choice(policies: RoundPolicy) -> RoundPolicy:
        policy, ahead = policies.policy, policies.ahead
        if not any(policies.grammars):
            k = policy.choose(ahead)
            return RoundPolicy(policy, policies.slots, policies.grammars, ahead, k, k)
        if not isinstance(policy, Fixed):
            rows = [_with_forced(*row, policy.max_drafts) for row in zip(ahead.rows, policies.grammars, strict=True)]
            ahead = replace(ahead, rows=rows)
        k = policy.choose(ahead)
        chosen = RoundPolicy(policy, policies.slots, policies.grammars, ahead, k, policy.reach(ahead, k))
        for grammar in filter(None, policies.grammars):
            grammar.reach = chosen.reach
        return chosen


def _with_forced(row: RoundRow, grammar: GrammarPath | None, max_drafts: int) -> RoundRow:
    if grammar is None:
        return row
    return replace(row, forced=min(len(grammar.forced()), max_drafts), trust=grammar.trust)


def _row(request: Request) -> RoundRow:
    return RoundRow(request, request.method.name, prompt_tokens=len(request.prompt))


def first_k(request: Request, running: int) -> int:
    """Return the number of drafts after the prompt of a request that joins ``running`` others."""
    row = _row(request)
    return request.policy.choose(RoundAhead([row], running + 1, on_host=request.choice is not None))


def max_emitted(policies: Sequence[RoundPolicy], num_slots: int) -> list[int]:
    """Return the maximum number of tokens that a round emits, by slot."""
    max_tokens = [1] * num_slots
    for each in policies:
        for slot, grammar in zip(each.slots, each.grammars, strict=True):
            max_tokens[slot] = 1 + (each.k if grammar is None else max(each.k, each.reach))
    return max_tokens


def draft_limits(policies: Sequence[RoundPolicy], num_slots: int) -> list[int]:
    """Return the maximum number of verified drafts, by slot."""
    limits = [0] * num_slots
    for each in policies:
        for slot in each.slots:
            limits[slot] = each.k
    return limits
