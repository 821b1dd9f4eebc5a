"""N-gram lookup: drafts are the tokens that followed the last n-gram at its previous occurrence in the text.

Also known as prompt lookup or n-gram speculation. It pays off for repetitive text: edited code, quoted documents,
lists, tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from .record import DraftMethod

LONGEST, SHORTEST = 3, 2  # n-gram lengths


class NgramProposer:
    """An index of a growing text: for every n-gram, the position of the token that last followed it.

    Adding a token and looking up drafts take constant time in the length of the text.

    Example: the text is ``1 2 3 50 2 3 60 1 2 3``, and n-grams have 3 or 2 tokens. The last three, ``1 2 3``, occurred
    at the beginning, followed by ``50 2 3 60 1 2 3``:

        >>> proposer = NgramProposer()
        >>> proposer.propose([1, 2, 3, 50, 2, 3, 60, 1, 2, 3], 4)
        [50, 2, 3, 60]

    The target accepts 50 and writes 2 next, so ``3 50 2`` is looked up, which also occurred at the beginning:

        >>> proposer.propose([1, 2, 3, 50, 2, 3, 60, 1, 2, 3, 50, 2], 2)
        [3, 60]

    After a 7, neither ``2 3 7`` nor ``3 7`` occurred before. There are no drafts, and the round is plain decoding:

        >>> NgramProposer().propose([1, 2, 3, 50, 2, 3, 7], 4)
        []
    """

    def __init__(self, longest: int = LONGEST, shortest: int = SHORTEST) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._known = 0  # number of indexed tokens
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token that last followed it

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """Return the ``k`` tokens that followed the previous occurrence of the longest n-gram at the end of the text.

        Returns no drafts if no n-gram occurred before. If fewer than ``k`` tokens followed, the text since then is
        assumed to repeat, so a period is drafted as often as it fits.
        """
        self._index(tokens)
        for size in self._sizes:
            begin = self._after.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if begin is not None:
                period = len(tokens) - begin
                return [tokens[begin + i % period] for i in range(k)]
        return []

    def _index(self, tokens: Sequence[int]) -> None:
        """Index the new tokens; each follows the n-grams that end before it."""
        for at in range(self._known, len(tokens)):
            for size in self._sizes:
                if size <= at:
                    self._after[tuple(tokens[at - size : at])] = at
        self._known = len(tokens)


METHOD = DraftMethod(
    name="ngram",
    title="n-gram lookup",
    help="n-gram lookup in the text",
    note="looked up in the text",
    proposer=NgramProposer,
    depth=8,
    vllm_names=("ngram", "ngram_gpu"),
)
