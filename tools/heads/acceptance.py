"""How many drafts of a head are accepted when the target writes greedily, from the text that it wrote.

Greedy speculative decoding writes the text that the target writes alone, and a head's context in a round is that text
and nothing else. So all drafts of a text come from one pass over it, and the rounds are read off.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .head import Head
from .head_rows import all_anchors, compute_rows
from .states import Lesson


@dataclass(frozen=True)
class Acceptance:
    """Results over some texts, for one number of drafted tokens."""

    count: int
    tokens: int
    accepted: list[int]  # drafts accepted, by round

    @property
    def length(self) -> float:
        """Acceptance length: accepted drafts and one token of the target's own, averaged over all rounds."""
        return 1 + sum(self.accepted) / len(self.accepted)

    @property
    def by_position(self) -> list[float]:
        """Share of the rounds that accepted at least 1, 2, ... drafts."""
        return [sum(n > i for n in self.accepted) / len(self.accepted) for i in range(self.count)]

    def __str__(self) -> str:
        shares = " ".join(f"{share:.2f}" for share in self.by_position)
        return (
            f"K={self.count}  acceptance length {self.length:.2f} over {self.tokens:,} tokens in "
            f"{len(self.accepted):,} rounds;  accepted at least 1, 2, ...: {shares}"
        )


@torch.no_grad()
def drafts_everywhere(head: Head, ids: Tensor, aux: Tensor, count: int) -> Tensor:
    """ids int64 [T], aux [T, .] -> int64 [T - 1, count]: what the head drafts after row p, i.e. for tokens p + 2 ...

    -1 where a draft would lie behind the text.
    """
    anchors = all_anchors(len(ids) - 1, count)
    rows = compute_rows(head, ids[None], aux[None].float(), anchors)
    chosen = head.draft_ids[head.drafter.lm_head(rows.hidden[0]).argmax(-1)]
    table = torch.full((len(ids) - 1, count), -1)
    table[rows.anchor, rows.depth] = chosen
    return table


def rounds(ids: Tensor, answer: int, drafts: Tensor) -> list[int]:
    """Accepted drafts of each round that writes ids[answer + 1:]; `drafts` as `drafts_everywhere` gives them.

    The first token of the answer comes with the prompt's own pass.
    """
    text, table = ids.tolist(), drafts.tolist()
    accepted: list[int] = []
    last = answer  # the last token that stands
    while last + 1 < len(text):
        hits = 0
        for offset, draft in enumerate(table[last - 1]):
            place = last + 1 + offset
            if place >= len(text) or text[place] != draft:
                break
            hits += 1
        # A round that reaches the end writes no token of the target's own after it.
        accepted.append(hits)
        last += hits + 1
    return accepted


def measure(head: Head, lessons: list[Lesson], count: int) -> Acceptance:
    """Acceptance over the answers of `lessons`."""
    accepted: list[int] = []
    for lesson in lessons:
        accepted += rounds(lesson.ids, lesson.answer, drafts_everywhere(head, lesson.ids, lesson.aux, count))
    return Acceptance(count, sum(len(lesson.ids) - lesson.answer for lesson in lessons), accepted)
