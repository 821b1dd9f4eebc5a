"""Decode many dialogues at once with a Llama-like target, one per slot."""

from __future__ import annotations

import torch
from peagle_module import rotate
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, LlamaForCausalLM


class BatchDecoder:
    """A target with a cache of `slots` rows of `length` positions; one step writes one token in every row.

    Computes in the model's dtype. On processors with bfloat16 arithmetic (AVX512-BF16, AMX), bfloat16 decodes some four
    times as fast as float32; the text is then that of the rounded weights, which does not matter for training text.
    """

    def __init__(self, model: LlamaForCausalLM, slots: int, length: int):
        self.model, self.slots, self.length = model, slots, length
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = config.head_dim or config.hidden_size // self.heads
        layers = model.model.layers
        dtype = model.dtype
        # Slots and heads share one dimension: a batched bfloat16 product copies slices and inputs with more than three
        # dimensions, which costs more than reading the whole cache.
        self.keys = torch.zeros(len(layers), slots * self.kv_heads, length, self.dim, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.qkv = [
            torch.cat([layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight])
            for layer in layers
        ]
        self.gate_up = [torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]) for layer in layers]
        cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=torch.float32), torch.arange(length)[None])
        self.cos, self.sin = cos[0].to(dtype), sin[0].to(dtype)

    @torch.no_grad()
    def prefill(self, slot: int, ids: Tensor) -> Tensor:
        """Fill `slot` with ids int64 [T]; return the logits after the last of them, float32 [V]."""
        cache = DynamicCache(config=self.model.config)
        hidden = self.model.model(input_ids=ids[None], past_key_values=cache, use_cache=True).last_hidden_state
        rows = slice(slot * self.kv_heads, (slot + 1) * self.kv_heads)
        for i, layer in enumerate(cache.layers):
            self.keys[i, rows, : len(ids)] = layer.keys[0]
            self.values[i, rows, : len(ids)] = layer.values[0]
        logits: Tensor = self.model.lm_head(hidden[0, -1]).float()
        return logits

    @torch.no_grad()
    def step(self, ids: Tensor, at: Tensor) -> Tensor:
        """Write ids int64 [slots], each at position at[slot]; return logits float32 [slots, V]."""
        rows, at_rows = torch.arange(self.slots * self.kv_heads), at.repeat_interleave(self.kv_heads)
        hidden_away = (torch.arange(self.length) > at_rows[:, None])[:, None]
        cos, sin = self.cos[at, None], self.sin[at, None]
        x = self.model.model.embed_tokens(ids)
        q_size, kv_size = self.heads * self.dim, self.kv_heads * self.dim
        for i, layer in enumerate(self.model.model.layers):
            qkv = functional.linear(layer.input_layernorm(x), self.qkv[i])
            q, k, v = qkv.split([q_size, kv_size, kv_size], -1)
            q = rotate(q.view(self.slots, self.heads, self.dim), cos, sin)
            k = rotate(k.view(self.slots, self.kv_heads, self.dim), cos, sin)
            self.keys[i, rows, at_rows] = k.flatten(0, 1)
            self.values[i, rows, at_rows] = v.reshape(-1, self.dim)
            q = q.view(len(rows), -1, self.dim) * self.dim**-0.5
            scores = torch.bmm(q, self.keys[i].transpose(1, 2)).float().masked_fill(hidden_away, -1e30)
            y = torch.bmm(scores.softmax(-1).to(x.dtype), self.values[i])
            x = x + layer.self_attn.o_proj(y.view(self.slots, -1))
            gate, up = functional.linear(layer.post_attention_layernorm(x), self.gate_up[i]).chunk(2, -1)
            x = x + layer.mlp.down_proj(functional.silu(gate) * up)
        logits: Tensor = self.model.lm_head(self.model.model.norm(x)).float()
        return logits
