"""A tree of drafts: the likeliest continuations that a drafter's positions make together, verified in one window.

A parallel drafter says of every position which tokens are likely there, whatever stands before them. So a path is as
likely as the product of its tokens, and the best tree of some size is that of the likeliest paths: every beginning of a
path is likelier than the path, and so in the tree already. Dynamic trees: EAGLE-2, arXiv 2406.16858, section 4.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class DraftTree:
    """Drafts behind the newest token, the likeliest first. ``parents[i]`` is 0 for the newest token, j + 1 for draft j.

    So both are numbered as the columns of a window that begins with the newest token, and a tree may be cut anywhere.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @classmethod
    def grown(cls, ids: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], size: int) -> DraftTree:
        """The ``size`` likeliest drafts, or as many as there can be.

        ``ids`` [D][C] are the candidates of each position, all different and the likeliest first; ``scores`` are the
        logarithms of their probabilities.
        """
        tokens: list[int] = []
        parents: list[int] = []
        edge = [(-scores[0][0], 0, 0, 0)]  # minus its logarithm, position, place among the candidates, parent
        while edge and len(tokens) < size:
            worst, position, place, parent = heapq.heappop(edge)
            tokens.append(ids[position][place])
            parents.append(parent)
            here = scores[position]
            if place + 1 < len(here):
                heapq.heappush(edge, (worst + here[place] - here[place + 1], position, place + 1, parent))
            if position + 1 < len(scores):
                heapq.heappush(edge, (worst - scores[position + 1][0], position + 1, 0, len(tokens)))
        return cls(tuple(tokens), tuple(parents))

    def cut(self, size: int) -> DraftTree:
        """The first ``size`` drafts."""
        return DraftTree(self.tokens[:size], self.parents[:size])

    @property
    def depths(self) -> list[int]:
        """How far each column of the window is from the newest token, which is the first of them."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths

    def ancestors(self) -> np.ndarray:
        """bool [1 + drafts, 1 + drafts]: which earlier columns of the window each of them sees."""
        seen = np.zeros((len(self.tokens) + 1, len(self.tokens) + 1), bool)
        for column, parent in enumerate(self.parents, 1):
            seen[column] = seen[parent]
            seen[column, parent] = True
        return seen

    def path(self, accepted: Sequence[int]) -> list[int]:
        """The columns of the newest token and of the drafts that were ``accepted``, one behind the other."""
        columns = [0]
        for token in accepted:
            here = columns[-1]
            following = (c for c, p in enumerate(self.parents, 1) if p == here and self.tokens[c - 1] == token)
            columns.append(next(following))
        return columns


@lru_cache(maxsize=16)
def chain_ancestors(columns: int) -> np.ndarray:
    """bool [columns, columns], not to be written to: the ancestors of a window in which each sees all before it."""
    seen = np.tri(columns, k=-1, dtype=bool)
    seen.flags.writeable = False
    return seen
