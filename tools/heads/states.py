"""Training data of a head, computed once per dialogue: tapped states of the target, and its next-token distribution."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from .dialogues import Dialogue

LIKELIEST = 16  # tokens kept of the target's distribution per position
ROWS_AT_ONCE = 16
TOKENS_PER_ROW = 32  # tokens whose logits exist together, for each of these rows


@dataclass(frozen=True)
class Lesson:
    """One dialogue of T tokens as a head reads it.

    ids int64 [T]; aux float16 [T, taps * hidden] (the residual stream entering the tapped layers); likely int32 [T,
    LIKELIEST] and chances float16 [T, LIKELIEST]: the target's distribution after each position, likeliest first. The
    answer starts at `answer`.
    """

    index: int
    kind: str
    answer: int
    ids: Tensor
    aux: Tensor
    likely: Tensor
    chances: Tensor


@torch.no_grad()
def lessons_of(
    target: LlamaForCausalLM, dialogues: list[Dialogue], taps: tuple[int, ...], rows_at_once: int = ROWS_AT_ONCE
) -> list[Lesson]:
    """Return the lessons of `dialogues` in order; `rows_at_once` of similar length go through the target together."""
    order = sorted(range(len(dialogues)), key=lambda i: len(dialogues[i].ids))
    found: dict[int, Lesson] = {}
    for first in range(0, len(order), rows_at_once):
        places = order[first : first + rows_at_once]
        rows = [dialogues[i].ids for i in places]
        lengths = [len(row) for row in rows]
        width = max(lengths)
        # Rows are padded on the right, where causal attention does not look.
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=target.device)
        out = target.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        real = torch.arange(width, device=ids.device) < torch.tensor(lengths, device=ids.device)[:, None]
        aux = torch.cat([out.hidden_states[tap][real] for tap in taps], -1).to(torch.float16)
        likely, chances = [], []
        for hidden in out.last_hidden_state[real].split(rows_at_once * TOKENS_PER_ROW):
            logits = target.lm_head(hidden).float()
            best, ranked = logits.topk(LIKELIEST, -1)
            likely.append(ranked.int())
            chances.append((best - logits.logsumexp(-1, keepdim=True)).exp().to(torch.float16))
        parts = (part.split(lengths) for part in (ids[real], aux, torch.cat(likely), torch.cat(chances)))
        for place, tensors in zip(places, zip(*parts, strict=True), strict=True):
            dialogue = dialogues[place]
            found[place] = Lesson(dialogue.index, dialogue.kind, dialogue.answer, *tensors)
    return [found[i] for i in range(len(dialogues))]


def save_lessons(path: Path, lessons: list[Lesson]) -> None:
    """Write a temporary file and rename it, so that no partial file is left."""
    joined = {name: torch.cat([getattr(lesson, name) for lesson in lessons]) for name in _TENSORS}
    rows = [[lesson.index, lesson.kind, lesson.answer, len(lesson.ids)] for lesson in lessons]
    partial = path.with_name(path.name + ".partial")
    torch.save(joined | {"rows": json.dumps(rows)}, partial)
    os.replace(partial, path)


def load_lessons(path: Path) -> list[Lesson]:
    """Return the lessons of a file; their tensors are read from disk on use."""
    content = torch.load(path, mmap=True, weights_only=True)
    lessons, first = [], 0
    for index, kind, answer, length in json.loads(content["rows"]):
        parts = {name: content[name][first : first + length] for name in _TENSORS}
        lessons.append(Lesson(index=index, kind=kind, answer=answer, **parts))
        first += length
    return lessons


_TENSORS = ("ids", "aux", "likely", "chances")
