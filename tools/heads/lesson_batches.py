"""Batches of lessons as a function of the step alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .states import Lesson

PROMPT_WEIGHT = 0.2  # weight of a user-turn position relative to an answer position
SORTED_BATCHES = 8  # lessons of this many batches are grouped by length


@dataclass(frozen=True)
class Batch:
    """B lessons padded to T tokens.

    ids int64 [B, T]; aux float [B, T, .]; likely int64 [B, T, N] ids in the head's vocabulary, and chances float [B, T,
    N], 0 if the head cannot propose a token; weight float [B, T] of the target's distribution after a position; best
    int64 [B, T] the target's first choice in the head's ids, or -1.
    """

    ids: Tensor
    aux: Tensor
    likely: Tensor
    chances: Tensor
    best: Tensor
    weight: Tensor


class LessonBatches:
    """The lessons in a new order every epoch; a resumed run sees the same batches as an uninterrupted one."""

    def __init__(self, lessons: list[Lesson], to_draft: Tensor, rows: int, seed: int):
        """Take to_draft int64 [V]: the head's own id of a target id, or -1."""
        if len(lessons) < rows:
            raise SystemExit(
                f"{len(lessons)} dialogues are too few for batches of {rows}: write more with make_head_data.py"
            )
        self.lessons, self.to_draft, self.rows, self.seed = lessons, to_draft, rows, seed
        self.per_epoch = len(lessons) // rows
        self.fixed = common_prefix([lesson.ids for lesson in lessons])

    def at(self, step: int) -> Batch:
        """Return the batch of `step`."""
        epoch, index = divmod(step, self.per_epoch)
        generator = torch.Generator().manual_seed(self.seed * 1000 + epoch)
        order = torch.randperm(len(self.lessons), generator=generator).tolist()
        batches: list[list[int]] = []
        for first in range(0, self.per_epoch * self.rows, self.rows * SORTED_BATCHES):
            part = order[first : min(first + self.rows * SORTED_BATCHES, self.per_epoch * self.rows)]
            part.sort(key=lambda place: len(self.lessons[place].ids))
            batches += [part[i : i + self.rows] for i in range(0, len(part), self.rows)]
        place = int(torch.randperm(len(batches), generator=generator)[index])
        return self.collate([self.lessons[i] for i in batches[place]])

    def collate(self, lessons: list[Lesson]) -> Batch:
        """Stack `lessons`, padded on the right with weight 0."""
        pad = torch.nn.utils.rnn.pad_sequence
        ids, likely, chances = (
            pad([getattr(lesson, name) for lesson in lessons], batch_first=True)
            for name in ("ids", "likely", "chances")
        )
        aux = pad([lesson.aux for lesson in lessons], batch_first=True).float()
        own = self.to_draft[likely.long()]
        weight = pad([self.weights(lesson) for lesson in lessons], batch_first=True)
        known = own >= 0
        return Batch(ids, aux, own.clamp_min(0), chances.float() * known, own[..., 0], weight)

    def weights(self, lesson: Lesson) -> Tensor:
        """Return float [T]; the common prefix of all dialogues and everything past the end have weight 0."""
        weight = torch.full((len(lesson.ids),), PROMPT_WEIGHT, device=lesson.ids.device)
        weight[: self.fixed - 1] = 0
        weight[lesson.answer - 1 :] = 1
        weight[-1] = 0
        return weight


def common_prefix(texts: list[Tensor]) -> int:
    """Return the length of the common prefix of texts, int64 [T] each, in tokens (at least 1)."""
    shortest = min(map(len, texts))
    starts = torch.stack([ids[:shortest] for ids in texts])
    same = (starts == starts[0]).all(0).cumprod(0)
    return max(1, int(same.sum()))
