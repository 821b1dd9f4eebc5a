"""Lessons of many dialogues in the memory of a GPU, stacked into batches without copies through the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from .dialogues import Dialogue
from .lesson_batches import PROMPT_WEIGHT, Batch, common_prefix
from .states import LIKELIEST, lessons_of

READ_AT_ONCE = 64  # dialogues


@dataclass(frozen=True)
class PackedLessons:
    """The lessons of D dialogues end to end in the GPU's memory, N tokens together: see `heads.states.Lesson`.

    first, length, answer int64 [D]; ids int64 [N]; aux float16 [N, taps * hidden]; likely int32 and chances float16 [N,
    LIKELIEST]. `lengths` is a copy of `length` for the host.
    """

    lengths: list[int]
    first: Tensor
    length: Tensor
    answer: Tensor
    ids: Tensor
    aux: Tensor
    likely: Tensor
    chances: Tensor
    prefix: int

    @staticmethod
    def of(target: LlamaForCausalLM, dialogues: list[Dialogue], taps: tuple[int, ...]) -> PackedLessons:
        """Let the target read `dialogues` once."""
        device = target.device
        ordered = sorted(dialogues, key=lambda dialogue: len(dialogue.ids))
        lengths = [len(dialogue.ids) for dialogue in ordered]
        length = torch.tensor(lengths, device=device)
        total, inputs = sum(lengths), len(taps) * target.config.hidden_size
        parts: dict[str, Tensor] = {
            "ids": torch.empty(total, dtype=torch.int64, device=device),
            "aux": torch.empty(total, inputs, dtype=torch.float16, device=device),
            "likely": torch.empty(total, LIKELIEST, dtype=torch.int32, device=device),
            "chances": torch.empty(total, LIKELIEST, dtype=torch.float16, device=device),
        }
        at = 0
        for start in range(0, len(ordered), READ_AT_ONCE):
            read = lessons_of(target, ordered[start : start + READ_AT_ONCE], taps, rows_at_once=READ_AT_ONCE)
            size = sum(len(lesson.ids) for lesson in read)
            for name, tensor in parts.items():
                tensor[at : at + size] = torch.cat([getattr(lesson, name) for lesson in read])
            at += size
        return PackedLessons(
            lengths=lengths,
            first=length.cumsum(0) - length,
            length=length,
            answer=torch.tensor([dialogue.answer for dialogue in ordered], device=device),
            prefix=common_prefix([torch.tensor(dialogue.ids) for dialogue in ordered]),
            **parts,
        )

    def batch(self, group: list[int], to_draft: Tensor) -> Batch:
        """Stack the dialogues `group`, padded on the right with weight 0."""
        width = max(self.lengths[i] for i in group)
        chosen = torch.tensor(group).to(self.ids.device, non_blocking=True)
        place = torch.arange(width, device=self.ids.device)[None]
        length, answer = self.length[chosen, None], self.answer[chosen, None]
        at = self.first[chosen, None] + torch.minimum(place, length - 1)
        own = to_draft[self.likely[at].long()]
        weight = (
            torch.where(place >= answer - 1, 1.0, PROMPT_WEIGHT) * (place >= self.prefix - 1) * (place < length - 1)
        )
        known = own >= 0
        chances = self.chances[at].float() * known
        return Batch(self.ids[at], self.aux[at].float(), own.clamp_min(0), chances, own[..., 0], weight)

    def answers(self) -> Tensor:
        """Return the ids of all answers."""
        place = torch.arange(len(self.ids), device=self.ids.device)
        inside = place - self.first.repeat_interleave(self.length)
        return self.ids[inside >= self.answer.repeat_interleave(self.length)]
