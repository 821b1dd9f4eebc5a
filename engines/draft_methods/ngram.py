"""Drafts looked up in the text itself, without a drafter: where its last tokens stood before, what followed them then.

Known as prompt lookup and as n-gram speculation. It pays where text repeats: code that is edited, a document that is
quoted, a list, a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from .record import DraftMethod

LONGEST, SHORTEST = 3, 2  # of the n-grams that are looked up


class NgramProposer:
    """An index of a text that grows: for every n-gram, where it was last followed by a token.

    Adding a token and looking up drafts take the same time however long the text is.

    Example: the text is ``1 2 3 50 2 3 60 1 2 3``, and n-grams have 3 or 2 tokens. The last three, ``1 2 3``, stood
    at the beginning, and ``50 2 3 60 1 2 3`` followed there:

        >>> proposer = NgramProposer()
        >>> proposer.propose([1, 2, 3, 50, 2, 3, 60, 1, 2, 3], 4)
        [50, 2, 3, 60]

    The target accepts 50 and writes 2 next, and so ``3 50 2`` is looked up. It stood at the beginning too:

        >>> proposer.propose([1, 2, 3, 50, 2, 3, 60, 1, 2, 3, 50, 2], 2)
        [3, 60]

    After a 7 neither ``2 3 7`` nor ``3 7`` stood anywhere. There are no drafts, and the round is plain decoding:

        >>> NgramProposer().propose([1, 2, 3, 50, 2, 3, 7], 4)
        []
    """

    def __init__(self, longest: int = LONGEST, shortest: int = SHORTEST) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._known = 0  # how many tokens the index has
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token that followed it last

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """Return the ``k`` tokens that followed the longest n-gram at the end of the text where it stood last before.

        None where no n-gram of it did. Where that is so near the end that fewer than ``k`` followed, the text is taken
        to go on as it has since: a period is drafted as often as there is room for it.
        """
        self._index(tokens)
        for size in self._sizes:
            begin = self._after.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if begin is not None:
                period = len(tokens) - begin
                return [tokens[begin + i % period] for i in range(k)]
        return []

    def _index(self, tokens: Sequence[int]) -> None:
        """Add the tokens that are new; each follows the n-grams that end before it."""
        for at in range(self._known, len(tokens)):
            for size in self._sizes:
                if size <= at:
                    self._after[tuple(tokens[at - size : at])] = at
        self._known = len(tokens)


METHOD = DraftMethod(
    name="ngram",
    title="n-gram lookup",
    help="drafts looked up in the text",
    note="looked up in the text",
    proposer=NgramProposer,
    depth=8,
    vllm_names=("ngram", "ngram_gpu"),
)
