"""Generation in plain PyTorch, batch 1: the target alone, and the target with its drafter."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from peagle_module import CausalCache, Drafter
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM


@dataclass
class Generation:
    """New token ids, and the number of accepted draft tokens per round."""

    ids: list[int]
    accepted: list[int] = field(default_factory=list)

    @property
    def tokens_per_round(self) -> float:
        return 1 + sum(self.accepted) / len(self.accepted)


class Target:
    """The target with its cache."""

    def __init__(self, model: Qwen3ForCausalLM, taps: tuple[int, ...]):
        self.model, self.taps = model, taps
        self.cache = DynamicCache(config=model.config)

    def __call__(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Return logits [T, V] and the residual stream entering the auxiliary layers [1, T, taps * hidden]."""
        out = self.model.model(
            input_ids=torch.tensor([ids]), past_key_values=self.cache, use_cache=True, output_hidden_states=True
        )
        aux = torch.cat([out.hidden_states[tap] for tap in self.taps], -1)
        return self.model.lm_head(out.last_hidden_state)[0], aux

    def drop_last(self, rows: int) -> None:
        if rows:
            self.cache.crop(-rows)


class Proposer:
    """The drafter with its cache of real rows; placeholder rows are dropped after each round."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.cache = CausalCache()
        self.rows = 0

    def __call__(self, ids: list[int], aux: Tensor, count: int) -> list[int]:
        """Draft `count` tokens. ids: new committed tokens, each one position after its row of aux [1, T, aux_size]."""
        drafter, blanks = self.drafter, count - 1
        row_ids = torch.tensor([ids + [drafter.config.ptd_token_id] * blanks])
        row_aux = torch.cat([aux, drafter.mask_hidden.expand(1, blanks, -1)], 1)
        total = row_ids.shape[1]
        positions = torch.arange(self.rows, self.rows + total)
        hidden = drafter(row_ids, row_aux, positions, self.cache)
        self.rows += len(ids)
        self.cache.keep(self.rows)
        draft: list[int] = drafter.lm_head(hidden[0, -count:]).argmax(-1).tolist()
        return draft


def choose(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    """Choose one token from logits [V]."""
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))


def verify(logits: Tensor, draft: list[int], temperature: float, generator: torch.Generator) -> list[int]:
    """Return the tokens that a round emits, given logits [len(draft) + 1, V]: accepted drafts and one target token.

    The drafts are the drafter's first choices, i.e. drawn from a one-hot distribution. Accepting d with probability
    p(d) and otherwise drawing from p without d leaves the target's distribution unchanged.
    """
    for i, token in enumerate(draft):
        if temperature == 0:
            best = int(logits[i].argmax())
            if best != token:
                return [*draft[:i], best]
            continue
        chances = (logits[i] / temperature).softmax(-1)
        if float(torch.rand((), generator=generator)) >= float(chances[token]):
            chances[token] = 0
            return [*draft[:i], int(torch.multinomial(chances, 1, generator=generator))]
    return [*draft, choose(logits[-1], temperature, generator)]


@torch.no_grad()
def generate_alone(model: Qwen3ForCausalLM, prompt: list[int], new_tokens: int) -> list[int]:
    """Generate greedily, one token per pass."""
    target, ids, out = Target(model, ()), prompt, list[int]()
    cache = target.cache
    while len(out) < new_tokens:
        hidden = model.model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True).last_hidden_state
        ids = [int(model.lm_head(hidden[0, -1]).argmax())]
        out += ids
    return out


@torch.no_grad()
def generate_together(
    model: Qwen3ForCausalLM,
    drafter: Drafter,
    prompt: list[int],
    new_tokens: int,
    count: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> Generation:
    """Generate with `count` draft tokens per round; ignores the end token, so that every run has the same length."""
    generator = torch.Generator().manual_seed(seed)
    target, propose = Target(model, drafter.config.aux_layers), Proposer(drafter)
    logits, aux = target(prompt)
    fresh = [choose(logits[-1], temperature, generator)]
    result = Generation(list(fresh))
    rows = [*prompt[1:], *fresh]
    while len(result.ids) < new_tokens:
        draft = propose(rows, aux, count)
        logits, aux = target([result.ids[-1], *draft])
        rows = verify(logits, draft, temperature, generator)
        aux = aux[:, : len(rows)]
        target.drop_last(count + 1 - len(rows))
        result.ids += rows
        result.accepted.append(len(rows) - 1)
    result.ids = result.ids[:new_tokens]
    return result
