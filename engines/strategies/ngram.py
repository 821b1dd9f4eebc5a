"""Drafts looked up in the text itself, without a drafter: where its last tokens stood before, what followed them then.

Known as prompt lookup and as n-gram speculation. It pays where text repeats: code that is edited, a document that is
quoted, a list, a table. Of the places where the last three tokens stood, else the last two, the newest is taken.

    draft_1 .. k  = what followed the last n-gram when it stood there before    on the host, between two rounds
    y_0 .. y_a    = target(newest, draft_1 .. draft_k)                          verify as ever
    window        = y_a

A round in which nothing was found is one of plain decoding, and costs what that costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.base import Lanes
from ..running.request import Request

NAME = "ngram"  # of the strategy
LONGEST, SHORTEST = 3, 2  # of the n-grams that are looked up


class NgramIndex:
    """A text that grows, and for every n-gram of it where it was last followed by a token.

    Adding a token and looking up drafts take the same time however long the text is.
    """

    def __init__(self, longest: int = LONGEST, shortest: int = SHORTEST) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token that followed it last

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens``; each follows the n-grams that end before it."""
        text, after = self._tokens, self._after
        for token in tokens:
            at = len(text)
            for size in self._sizes:
                if size <= at:
                    after[tuple(text[at - size :])] = at
            text.append(token)

    def drafts(self, k: int) -> list[int]:
        """The ``k`` tokens that followed the longest n-gram at the end of the text where it stood last before.

        None where no n-gram of it did. Where that is so near the end that fewer than ``k`` followed, the text is taken
        to go on as it has since: a period is drafted as often as there is room for it.
        """
        text = self._tokens
        for size in self._sizes:
            begin = self._after.get(tuple(text[-size:])) if size <= len(text) else None
            if begin is not None:
                period = len(text) - begin
                return [text[begin + i % period] for i in range(k)]
        return []


class NgramDrafting:
    """Rounds that verify what was looked up; it waits for the tokens of the last round, so no round is replayed."""

    enqueues_only = False

    def __init__(self, slots: Sequence[Request | None] = ()) -> None:
        self._slots = slots
        self._indices: dict[int, tuple[Request, NgramIndex]] = {}

    def over(self, slots: Sequence[Request | None]) -> NgramDrafting:
        """The strategy with an index for each request that ``slots`` come to hold."""
        return NgramDrafting(slots)

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run the target over a piece of a prompt, as a round whose window is that piece."""
        lanes.verify(0)
        lanes.advance(0)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify up to ``k`` drafts a row; where no row has any, a round of plain decoding."""
        drafts = self.proposals(k)
        if any(drafts):
            lanes.propose(drafts)
        forced = any(request and request.choice and request.choice.grammar for request in self._slots)
        lanes.verify(k if forced or any(drafts) else 0)
        lanes.advance(0)

    def proposals(self, k: int) -> list[list[int] | None]:
        """Up to ``k`` drafts for each slot; None for those whose drafts are not looked up."""
        return [
            self._drafts(slot, request, k) if request and request.strategy == NAME else None
            for slot, request in enumerate(self._slots)
        ]

    def _drafts(self, slot: int, request: Request, k: int) -> list[int]:
        """Drafts for the request in ``slot``; no more than it has room for before its last token."""
        owner, index = self._indices.get(slot, (None, NgramIndex()))
        if owner is not request:
            index = NgramIndex()
            index.extend(request.prompt)
            self._indices[slot] = request, index
        written = request.transcript.token_ids
        index.extend(written[len(index) - len(request.prompt) :])
        return index.drafts(min(k, request.room - len(written) - 1))
