"""Dialogues written thousands at a time on a GPU: all of a wave stand at the same position.

`dialogues.py` writes the same kind of text on a CPU, where a dialogue's slot takes the next one as soon as it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from peagle_module import rotate
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from .dialogues import LOOP_TOKENS, LOOPS, ChatFormat, Dialogue, Slot

LOOK_EVERY = 16  # positions between two looks for rows that have ended


class WaveDecoder:
    """A Llama target that continues many prompts together, on the device and in the dtype of its weights."""

    def __init__(self, model: LlamaForCausalLM, length: int):
        """Take `length`, the most tokens of a row."""
        self.model, self.length, config = model, length, model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = config.head_dim or config.hidden_size // self.heads
        device = self.device = model.device
        self.layers = [_LayerWeights.of(layer) for layer in model.model.layers]
        at = torch.arange(length, device=device)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=torch.float32, device=device), at)
        self.cos, self.sin = cos[0].to(model.dtype), sin[0].to(model.dtype)

    @torch.no_grad()
    def continue_prompts(
        self, prompts: Sequence[list[int]], limits: Sequence[int], temperatures: Sequence[float], end: int, seed: int
    ) -> list[list[int]]:
        """Return what follows each prompt: at most `limits` tokens, up to and with `end` or the fourth repetition."""
        device, count = self.device, len(prompts)
        sizes = torch.tensor([len(prompt) for prompt in prompts], device=device)
        stop = (sizes + torch.tensor(limits, device=device)).clamp_max(self.length)
        width = int(stop.max())
        ids = torch.zeros(count, width, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt)
        ids = ids.to(device)
        heat = torch.tensor(temperatures, device=device)
        chance = torch.Generator(device).manual_seed(seed)
        shape = len(self.model.model.layers), 2, count, self.kv_heads, width, self.dim
        caches = torch.empty(shape, dtype=self.model.dtype, device=device)
        rows = torch.arange(count, device=device)  # of the prompts that are still written
        hot = (heat > 0).nonzero()[:, 0]  # places in `rows`
        done = torch.zeros(count, dtype=torch.bool, device=device)
        finished = torch.zeros(count, dtype=torch.int64, device=device)  # lengths
        for at in range(width - 1):
            logits = self.step(ids[rows, at], at, caches)
            token = logits.argmax(-1)
            if len(hot):
                noise = torch.empty(len(hot), logits.shape[1], device=device).exponential_(generator=chance).log_()
                token[hot] = (logits[hot].float() / heat[rows[hot], None] - noise).argmax(-1)
            given = at + 1 < sizes[rows]
            ids[rows, at + 1] = torch.where(given | done, ids[rows, at + 1], token)
            ends = ~done & ~given & ((token == end) | (at + 2 >= stop[rows]))
            finished[rows] = torch.where(ends, at + 2, finished[rows])
            done = done | ends
            if (at + 1) % LOOK_EVERY:
                continue
            loop = first_loops(ids[rows, : at + 2], sizes[rows])
            looped = ~done & (loop > 0)
            finished[rows] = torch.where(looped, loop, finished[rows])
            done = done | looped
            alive = int((~done).sum())
            if alive == 0:
                break
            if alive <= len(rows) // 2:
                caches = narrowed(caches, ~done, at + 1)
                rows, done = rows[~done], done[~done]
                hot = (heat[rows] > 0).nonzero()[:, 0]
        text, lengths = ids.cpu(), finished.tolist()
        return [text[row, len(prompt) : lengths[row]].tolist() for row, prompt in enumerate(prompts)]

    def step(self, ids: Tensor, at: int, caches: Tensor) -> Tensor:
        """Write ids int64 [R] at position `at` of caches [layers, 2, R, kv_heads, T, D]; return logits [R, V].

        Few launches: below some thousand rows, they take longer than the GPU.
        """
        model, count, linear = self.model.model, len(ids), functional.linear
        turned, groups, eps = self.heads + self.kv_heads, self.kv_heads, self.model.config.rms_norm_eps
        cos, sin, width = self.cos[at], self.sin[at], (self.model.config.hidden_size,)
        x = model.embed_tokens(ids)
        for layer, cache in zip(self.layers, caches, strict=True):
            heads = linear(functional.rms_norm(x, width, layer.norm, eps), layer.qkv).view(count, -1, self.dim)
            qk = rotate(heads[:, :turned], cos, sin)
            cache[0, :, :, at], cache[1, :, :, at] = qk[:, self.heads :], heads[:, turned:]
            # The query heads of a group are rows that look at the same keys.
            q = qk[:, : self.heads].reshape(count, groups, -1, self.dim)
            y = functional.scaled_dot_product_attention(q, cache[0, :, :, : at + 1], cache[1, :, :, : at + 1])
            x = x + linear(y.reshape(count, -1), layer.out)
            gate, up = linear(functional.rms_norm(x, width, layer.mlp_norm, eps), layer.gate_up).chunk(2, -1)
            x = x + linear(functional.silu(gate) * up, layer.down)
        logits: Tensor = self.model.lm_head(model.norm(x))
        return logits


@dataclass(frozen=True)
class _LayerWeights:
    """The matrices and norms of a layer; those that read the same rows are one."""

    norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @staticmethod
    def of(layer: nn.Module) -> _LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        return _LayerWeights(
            norm=layer.input_layernorm.weight,
            qkv=torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
            out=attention.o_proj.weight,
            mlp_norm=layer.post_attention_layernorm.weight,
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            down=mlp.down_proj.weight,
        )


def narrowed(caches: Tensor, left: Tensor, used: int) -> Tensor:
    """Keep the rows `left` of caches [layers, 2, R, kv_heads, T, D], of which `used` positions are written.

    They move to the front, since the GPU may have no room for copies of all.
    """
    count = int(left.sum())
    for layer in caches:
        layer[:, :count, :, :used] = layer[:, left, :, :used]
    return caches[:, :, :count]


def first_loops(ids: Tensor, starts: Tensor) -> Tensor:
    """Return for ids int64 [R, T] the length at which row r first ends in LOOPS repetitions after starts[r], or 0."""
    count, width = ids.shape
    none = width + 1
    first = torch.full((count,), none, device=ids.device)
    place = torch.arange(width, device=ids.device)[None]
    for period in range(1, min(LOOP_TOKENS, (width - 1) // LOOPS) + 1):
        same = torch.zeros_like(ids, dtype=torch.bool)
        same[:, period:] = ids[:, period:] == ids[:, :-period]
        same &= place >= starts[:, None] + period
        count_of = same.cumsum(1)
        before = torch.where(same, 0, count_of).cummax(1).values
        loop = count_of - before >= (LOOPS - 1) * period
        first = torch.minimum(first, torch.where(loop, place + 1, none).amin(1))
    return torch.where(first == none, 0, first)


def write_wave(
    decoder: WaveDecoder, tokenizer: PreTrainedTokenizerBase, indices: Sequence[int], seed: int
) -> list[Dialogue]:
    """Return the dialogues of `indices`: the target completes the user turns that it shall, then answers them all."""
    form = ChatFormat.of(tokenizer)
    slots = [Slot(index, seed, tokenizer, form, decoder.length) for index in indices]
    turns = [slot for slot in slots if slot.turn.complete]
    if turns:
        prompts, limits = [slot.ids for slot in turns], [slot.turn_limit for slot in turns]
        heat = [slot.temperature for slot in turns]
        for slot, written in zip(
            turns, decoder.continue_prompts(prompts, limits, heat, form.end, seed * 7919 + indices[0]), strict=True
        ):
            slot.complete_turn(written)
    limits = [decoder.length - len(slot.ids) for slot in slots]
    heat = [slot.temperature for slot in slots]
    answers = decoder.continue_prompts([slot.ids for slot in slots], limits, heat, form.end, seed * 104729 + indices[0])
    for slot, answer in zip(slots, answers, strict=True):
        slot.ids += answer
    return [slot.dialogue() for slot in slots]
