"""Reference implementation of drafters: the drafts of one round in plain PyTorch, without caches or custom ops.

Everything is recomputed from the tokens each round, so there is no state. Slow, and meant to be read alongside the
papers (P-EAGLE, arXiv 2602.01469; EAGLE-3, arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..targets import TargetSpec, family_for
from ..targets.semantic_patches import RotaryTable
from . import DrafterSpec
from .drafter_layers import drafter_rotary

Weights = Mapping[str, Tensor]


def load_target(folder: Path, config: Mapping[str, Any]) -> Any:
    """Load the target in ``transformers``, FP32, eager attention."""
    return family_for(config).load(folder, config)


@torch.no_grad()
def target_pass(model: Any, target: TargetSpec, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the logits [len, V] and tapped features [len, A*H] of the whole sequence ``ids``."""
    streams: list[Tensor] = []
    layers = model.model.layers
    hooks = [
        layers[i].register_forward_pre_hook(
            lambda _, args, kwargs: streams.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
        for i in target.taps
    ]
    try:
        logits = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
    finally:
        for hook in hooks:
            hook.remove()
    return logits, torch.cat(streams, -1)[0] if streams else logits.new_zeros(len(ids), 0)


@torch.no_grad()
def draft_logits(weights: Weights, spec: DrafterSpec, ids: Sequence[int], features: Tensor, k: int) -> Tensor:
    """Return the logits [K, Vd] of K drafts after ``ids`` (x_0..x_{n-1}); ``features`` [n-1, A*H] lack the last.

    Row p combines token x_{p+1} with the target's features at p. For P-EAGLE, K-1 placeholder rows follow, with the
    mask token and ``mask_hidden``; the last K rows of one causal pass are the drafts. For EAGLE-3, each pass appends a
    row with the previous draft and the hidden state that produced it.
    """
    if spec.strategy == "parallel":
        rows = list(ids[1:]) + [spec.mask_token_id] * (k - 1)
        wide = torch.cat([features, weights["mask_hidden"].reshape(1, -1).expand(k - 1, -1)])
        return _logits(weights, spec, _hidden(weights, spec, rows, _fused_taps(wide, weights, spec))[-k:])
    rows, x = list(ids[1:]), _fused_taps(features, weights, spec)
    logits: list[Tensor] = []
    for _ in range(k):
        last = _hidden(weights, spec, rows, x)[-1:]
        logits.append(_logits(weights, spec, last))
        rows += to_target_ids(weights, logits[-1].argmax(-1))
        x = torch.cat([x, _norm(last, weights["norm.weight"], spec) if spec.norm_output else last])
    return torch.cat(logits)


def _logits(weights: Weights, spec: DrafterSpec, hidden: Tensor) -> Tensor:
    return _norm(hidden, weights["norm.weight"], spec) @ weights["lm_head.weight"].T


def _hidden(weights: Weights, spec: DrafterSpec, rows: Sequence[int], x: Tensor) -> Tensor:
    """Run the layers over rows with these tokens and features ``x`` [rows, H] -> [rows, H]: one causal pass."""
    embedding = weights["embed_tokens.weight"][torch.tensor(rows)]
    cos, sin = _rotary(drafter_rotary(spec), len(rows))
    for i in range(spec.num_layers):
        layer = {n.removeprefix(f"layers.{i}."): w for n, w in weights.items() if n.startswith(f"layers.{i}.")}
        if i == 0:
            hidden = _norm(x, layer["hidden_norm.weight"], spec)
            inner = torch.cat([_norm(embedding, layer["input_layernorm.weight"], spec), hidden], -1)
            x = hidden if spec.norm_before_residual else x
        else:
            inner = _norm(x, layer["input_layernorm.weight"], spec)
        q, keys, values = (
            _linear(inner, layer, f"self_attn.{n}_proj").view(len(rows), -1, spec.cache.head_dim).transpose(0, 1)
            for n in "qkv"
        )
        if spec.parts.qk_norm:
            q = _norm(q, layer["self_attn.q_norm.weight"], spec)
            keys = _norm(keys, layer["self_attn.k_norm.weight"], spec)
        group = q.shape[0] // keys.shape[0]
        q, keys = _rotate(q, cos, sin), _rotate(keys, cos, sin).repeat_interleave(group, 0)
        mask = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
        if spec.windows[i]:
            mask = mask.triu(1 - spec.windows[i])
        y = F.scaled_dot_product_attention(q, keys, values.repeat_interleave(group, 0), attn_mask=mask)
        x = x + _linear(y.transpose(0, 1).reshape(len(rows), -1), layer, "self_attn.o_proj")
        inner = _norm(x, layer["post_attention_layernorm.weight"], spec)
        gate = F.silu(_linear(inner, layer, "mlp.gate_proj")) * _linear(inner, layer, "mlp.up_proj")
        x = x + _linear(gate, layer, "mlp.down_proj")
    return x


def to_target_ids(weights: Weights, draft_ids: Tensor) -> list[int]:
    """Convert draft ids to target ids: ``id + d2t[id]`` if the drafter has its own vocabulary."""
    offset = weights["d2t"].to(torch.int64)[draft_ids] if "d2t" in weights else 0
    return [int(i) for i in draft_ids + offset]


def _fused_taps(wide: Tensor, weights: Weights, spec: DrafterSpec) -> Tensor:
    """Fuse taps, [rows, A*Ht] -> [rows, H]: ``fc``, after one norm over all taps, one per tap, or none."""
    if spec.parts.input_norm:
        wide = _norm(wide, weights["input_norm.weight"], spec)
    if spec.parts.fc_norms:
        chunks = wide.split(spec.target_hidden_size, -1)
        wide = torch.cat([_norm(c, weights[f"fc_norm.{i}.weight"], spec) for i, c in enumerate(chunks)], -1)
    return wide @ weights["fc.weight"].T


def _linear(x: Tensor, layer: Weights, name: str) -> Tensor:
    y = x @ layer[f"{name}.weight"].T
    return y + layer[f"{name}.bias"] if f"{name}.bias" in layer else y


def _norm(x: Tensor, weight: Tensor, spec: DrafterSpec) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + spec.rms_norm_eps) * weight


def _rotary(table: RotaryTable, length: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(length)[:, None] * torch.tensor(table.inv_freq)
    return angles.cos() * table.scaling, angles.sin() * table.scaling


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
