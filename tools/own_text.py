"""Continuations written by the target itself, many at once: the text that its drafter sees at inference."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM

PROMPT = 64
NEW_TOKENS = 192
TEMPERATURE = 0.8
WINDOW = PROMPT + NEW_TOKENS - 1  # positions that have a label
ROWS_AT_ONCE = 256


@torch.no_grad()
def continue_rows(
    target: Qwen3ForCausalLM, prompts: Tensor, new_tokens: int, sampled: int, generator: torch.Generator
) -> Tensor:
    """Continue prompts int64 [B, P] to int64 [B, P + new_tokens]; the last `sampled` rows sample, others are greedy.

    The end token does not stop a row: as in the training stream, a new document follows it.
    """
    greedy = len(prompts) - sampled
    cache = DynamicCache(config=target.config)
    pieces, ids = [prompts], prompts
    for _ in range(new_tokens):
        hidden = target.model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
        logits = target.lm_head(hidden).float()
        ids = logits.argmax(-1, keepdim=True)
        if sampled:
            chances = (logits[greedy:] / TEMPERATURE).softmax(-1)
            ids[greedy:] = torch.multinomial(chances, 1, generator=generator)
        pieces.append(ids)
    return torch.cat(pieces, 1)


def write_rows(
    target: Qwen3ForCausalLM, stream: Tensor, batches: int, sampled: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Write continuations of random places of `stream` int64 [T]: greedy and sampled, int64 [N, WINDOW + 1] each.

    `sampled` rows of each batch are sampled.
    """
    generator = torch.Generator().manual_seed(seed)
    greedy_parts: list[Tensor] = []
    sampled_parts: list[Tensor] = []
    for done in range(1, batches + 1):
        starts = torch.randint(len(stream) - PROMPT, (ROWS_AT_ONCE,), generator=generator)
        prompts = torch.stack([stream[start : start + PROMPT] for start in starts.tolist()])
        rows = continue_rows(target, prompts, NEW_TOKENS, sampled, generator)
        greedy_parts.append(rows[: ROWS_AT_ONCE - sampled])
        sampled_parts.append(rows[ROWS_AT_ONCE - sampled :])
        print(f"own text: {done}/{batches} batches of {ROWS_AT_ONCE} rows", flush=True)
    return torch.cat(greedy_parts), torch.cat(sampled_parts)


@dataclass(frozen=True)
class OwnText:
    """Rows written by the target, int64 [N, WINDOW + 1] each, and the time it took."""

    greedy: Tensor
    sampled: Tensor
    seconds: float
    seed: int

    def at(self, step: int, greedy: int, sampled: int) -> Tensor:
        """Return the rows of `step`, int64 [greedy + sampled, WINDOW + 1]."""
        return torch.cat([pick(self.greedy, step, greedy, self.seed), pick(self.sampled, step, sampled, self.seed)])


def pick(rows: Tensor, step: int, count: int, seed: int) -> Tensor:
    """Pick `count` of `rows` int64 [N, T] for `step`; each row once per epoch, in a new order every epoch."""
    epoch, index = divmod(step, len(rows) // count)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed * 1000 + epoch))
    return rows[order[index * count : (index + 1) * count]]


def load_or_write(path: Path, target: Qwen3ForCausalLM, stream: Tensor, batches: int, seed: int) -> OwnText:
    """Load or write `batches` half greedy and half sampled, then half as many all greedy.

    Greedy text repeats itself more, so a drafter learns more from it. Saved, because a resumed run needs the same text.
    """
    if not path.exists():
        started = time.monotonic()
        # Cache traffic limits the speed, and bfloat16 halves it; only the text matters, labels are computed later.
        writer = copy.deepcopy(target).to(torch.bfloat16)
        greedy, sampled = write_rows(writer, stream, batches, ROWS_AT_ONCE // 2, seed)
        more, _ = write_rows(writer, stream, batches // 2, 0, seed + 1)
        seconds = time.monotonic() - started
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"greedy": torch.cat([greedy, more]), "sampled": sampled, "seconds": seconds, "seed": seed}, path)
    return OwnText(**torch.load(path, weights_only=True))
