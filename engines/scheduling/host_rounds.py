"""Rounds that verify drafts made on the host, with one proposer per request.

    draft_1 .. k  = proposer(prompt, text so far)         on the host, between two rounds
    y_0 .. y_a    = target(newest, draft_1 .. draft_k)    verify as usual
    window        = y_a

A round without proposals is one of plain decoding, at the same cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..draft_methods import Proposer
from ..draft_methods.lanes import Lanes
from ..running.request import Request


@dataclass(frozen=True)
class ProposedText:
    """The request in a slot, its proposer, and its prompt and text so far."""

    request: Request
    proposer: Proposer
    tokens: list[int]


class HostDrafting:
    """The strategy of all methods that draft on the host. It waits for the last round, so no round is replayed."""

    enqueues_only = False

    def __init__(self, slots: Sequence[Request | None]) -> None:
        self._slots = slots
        self._texts: dict[int, ProposedText] = {}

    def slots_changed(self) -> None:
        """Forget the texts of requests that have left their slots."""
        self._texts = {slot: text for slot, text in self._texts.items() if self._slots[slot] is text.request}

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run the target over a prompt chunk, as a round whose window is that chunk."""
        lanes.verify(0)
        lanes.advance(0)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify up to ``k`` drafts per row; if no row has any, run a round of plain decoding."""
        drafts = self.proposals(k)
        if any(drafts):
            lanes.propose(drafts)
        forced = any(request and request.choice and request.choice.grammar for request in self._slots)
        lanes.verify(k if forced or any(drafts) else 0)
        lanes.advance(0)

    def proposals(self, k: int) -> list[list[int] | None]:
        """Return up to ``k`` drafts for each slot; None for slots that draft on the device or not at all."""
        return [self._drafts(slot, request, k) if request else None for slot, request in enumerate(self._slots)]

    def _drafts(self, slot: int, request: Request, k: int) -> list[int] | None:
        """Return drafts for the request in ``slot``, at most as many as fit before its last token."""
        if request.method.proposer is None:
            return None
        text = self._texts.get(slot)
        if text is None:
            text = self._texts[slot] = ProposedText(request, request.method.proposer(), [*request.prompt])
        written = request.transcript.token_ids
        text.tokens.extend(written[len(text.tokens) - len(request.prompt) :])
        max_drafts = min(k, request.room - len(written) - 1)
        return [*text.proposer.propose(text.tokens, max_drafts)][:max_drafts] if max_drafts > 0 else []
