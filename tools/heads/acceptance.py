"""Compute a head's acceptance for greedy decoding from the text that the target wrote.

Greedy speculative decoding produces the target's own text, and a head's context in a round is that text alone. So one
pass over a text yields all drafts, from which the rounds follow.
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
    """Results over some texts for one number of draft tokens."""

    count: int
    tokens: int
    accepted: list[int]  # drafts accepted, by round

    @property
    def length(self) -> float:
        """Acceptance length: accepted drafts plus one target token, averaged over all rounds."""
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
    """Return the drafts after row p, i.e. for tokens p + 2 ...: ids int64 [T], aux [T, .] -> int64 [T - 1, count].

    -1 marks a draft past the end of the text.
    """
    anchors = all_anchors(len(ids) - 1, count, ids.device)
    rows = compute_rows(head, ids[None], aux[None].float(), anchors)
    chosen = head.draft_ids[head.drafter.lm_head(rows.hidden[0]).argmax(-1)]
    table = ids.new_full((len(ids) - 1, count), -1)
    table[rows.anchor, rows.depth] = chosen
    return table


def rounds(ids: Tensor, answer: int, drafts: Tensor) -> list[int]:
    """Return the accepted drafts of each round that writes ids[answer + 1:]; `drafts` come from `drafts_everywhere`.

    The prompt's own pass produces the first token of the answer.
    """
    text, table = ids.tolist(), drafts.tolist()
    accepted: list[int] = []
    last = answer  # the last committed token
    while last + 1 < len(text):
        hits = 0
        for offset, draft in enumerate(table[last - 1]):
            place = last + 1 + offset
            if place >= len(text) or text[place] != draft:
                break
            hits += 1
        # A round that reaches the end adds no target token after it.
        accepted.append(hits)
        last += hits + 1
    return accepted


def measure(head: Head, lessons: list[Lesson], count: int) -> Acceptance:
    """Return the acceptance over the answers of `lessons`."""
    accepted: list[int] = []
    for lesson in lessons:
        accepted += rounds(lesson.ids, lesson.answer, drafts_everywhere(head, lesson.ids, lesson.aux, count))
    return Acceptance(count, sum(len(lesson.ids) - lesson.answer for lesson in lessons), accepted)
