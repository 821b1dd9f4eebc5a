"""The demo target: a Qwen3 decoder small enough for a repository, loaded as shipped."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

EVAL_WINDOW = 512


def new_config(vocab_size: int, end_id: int) -> Qwen3Config:
    """Return a config with 3.90 M parameters, 7.8 MB in bfloat16.

    Deep and narrow: twelve layers allow three distinct auxiliary layers.
    """
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=336,
        num_hidden_layers=12,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=end_id,
        eos_token_id=end_id,
        pad_token_id=end_id,
    )


def load_target(folder: Path) -> Qwen3ForCausalLM:
    """Load the shipped (bfloat16-rounded) weights for computation in float32."""
    model: Qwen3ForCausalLM = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval().requires_grad_(False)
    return model


def next_token_loss(model: Qwen3ForCausalLM, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy of ids[:, 1:] given the tokens before.  ids int64 [B, T + 1] -> scalar float32."""
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).float()
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Qwen3ForCausalLM, stream: Tensor, windows: int | None = None) -> float:
    """Return the mean loss in nats per token over the first (default: all) disjoint `windows` of `stream` int64 [T]."""
    rows = stream[: (len(stream) - 1) // EVAL_WINDOW * EVAL_WINDOW + 1].unfold(0, EVAL_WINDOW + 1, EVAL_WINDOW)
    if windows is not None:
        rows = rows[:: max(1, len(rows) // windows)][:windows]
    total = 0.0
    for part in rows.split(8):
        total += next_token_loss(model, part).item() * len(part)
    return total / len(rows)


def perplexity(loss: float) -> float:
    return math.exp(loss)
