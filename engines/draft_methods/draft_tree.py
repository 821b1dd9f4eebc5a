"""Draft trees: the most likely continuations that a drafter's positions allow together, verified in one window.

A parallel drafter predicts the likely tokens of each position independently of the tokens before it. The probability of
a path is therefore the product of its tokens' probabilities, and the best tree of a given size consists of the most
likely paths. A prefix of a path is more likely than the path, so it is already in the tree. Dynamic trees: EAGLE-2,
arXiv 2406.16858, section 4.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class DraftTree:
    """Drafts after the newest token, most likely first. ``parents[i]`` is 0 for the newest token, j + 1 for draft j.

    Both are thus numbered like the columns of a window that starts with the newest token, and any prefix is a tree.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @classmethod
    def grown(cls, ids: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], size: int) -> DraftTree:
        """Return the tree of the ``size`` most likely drafts, or of all drafts if there are fewer.

        ``ids`` [D][C] are the candidates of each position, distinct and most likely first; ``scores`` are their log
        probabilities.
        """
        tokens: list[int] = []
        parents: list[int] = []
        edge = [(-scores[0][0], 0, 0, 0)]  # negative log probability, position, candidate index, parent
        while edge and len(tokens) < size:
            worst, position, candidate, parent = heapq.heappop(edge)
            tokens.append(ids[position][candidate])
            parents.append(parent)
            here = scores[position]
            if candidate + 1 < len(here):
                heapq.heappush(edge, (worst + here[candidate] - here[candidate + 1], position, candidate + 1, parent))
            if position + 1 < len(scores):
                heapq.heappush(edge, (worst - scores[position + 1][0], position + 1, 0, len(tokens)))
        return cls(tuple(tokens), tuple(parents))

    def cut(self, size: int) -> DraftTree:
        """Return the tree of the first ``size`` drafts."""
        return DraftTree(self.tokens[:size], self.parents[:size])

    @property
    def depths(self) -> list[int]:
        """Return the distance of each window column from the newest token, which is the first column."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths

    def ancestors(self) -> np.ndarray:
        """Return bool [1 + drafts, 1 + drafts]: the earlier columns of the window that each column attends to."""
        visible = np.zeros((len(self.tokens) + 1, len(self.tokens) + 1), bool)
        for column, parent in enumerate(self.parents, 1):
            visible[column] = visible[parent]
            visible[column, parent] = True
        return visible

    def path(self, accepted: Sequence[int]) -> list[int]:
        """Return the columns of the newest token and of the ``accepted`` drafts, in order."""
        columns = [0]
        for token in accepted:
            here = columns[-1]
            following = (c for c, p in enumerate(self.parents, 1) if p == here and self.tokens[c - 1] == token)
            columns.append(next(following))
        return columns


@lru_cache(maxsize=16)
def chain_ancestors(columns: int) -> np.ndarray:
    """Return the read-only ancestors, bool [columns, columns], of a window of a chain."""
    visible = np.tri(columns, k=-1, dtype=bool)
    visible.flags.writeable = False
    return visible
