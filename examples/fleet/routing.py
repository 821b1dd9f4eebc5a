"""The choice of a replica: by the prompt's prefix, by load, and by the engine that began an answer."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from fleet.question import Question

REMEMBERED = 50_000  # prompt prefixes
MAX_LEAD = 4  # requests that a replica may be ahead of the least busy one before that one is preferred


class PrefixRouter(FIFOMixin, RequestRouter):
    """Sends a prompt to the replica with its longest known prefix, unless that replica is much busier than others.

    Each router process keeps its own record of sent prompts, so several proxies learn independently.
    """

    def initialize_state(self, **_: Any) -> None:
        """Called once, by Ray."""
        self._seen: OrderedDict[int, ReplicaID] = OrderedDict()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return ranks of replicas: Ray takes the least busy one of the first rank that has capacity."""
        question = _question(pending_request)
        everyone = _fit(candidate_replicas, question)
        random.shuffle(everyone)
        known = {replica.replica_id: replica for replica in everyone}
        for beginning in reversed(question.beginnings if question else ()):
            best = known.get(self._seen.get(beginning))
            if best is not None:
                return [everyone] if self._is_behind(best, everyone) else [[best], everyone]
        return [everyone]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Record the replica that a prompt was sent to; called by Ray."""
        question = _question(pending_request)
        for beginning in question.beginnings if question else ():
            self._seen[beginning] = replica_id
            self._seen.move_to_end(beginning)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    def _is_behind(self, replica: RunningReplica, everyone: list[RunningReplica]) -> bool:
        lengths = {each.replica_id: self.replica_queue_len_cache.get(each.replica_id) or 0 for each in everyone}
        return bool(lengths[replica.replica_id] - min(lengths.values()) > MAX_LEAD)


def _question(request: PendingRequest | None) -> Question | None:
    question: Question | None = request.args[0] if request and request.args else None
    return question


def _fit(candidates: Iterable[RunningReplica], question: Question | None) -> list[RunningReplica]:
    """Return the replicas that may continue the answer; all if there is none, so that one can refuse it."""
    everyone = list(candidates)
    if question is None:
        return everyone
    fit = [
        each
        for each in everyone
        if each.replica_id.unique_id not in question.avoid and question.fits(each.replica_metadata.get("engine"))
    ]
    return fit or everyone
