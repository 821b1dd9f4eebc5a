"""Modules of drafters with the EAGLE-3 layout, in plain torch and semantic ops, ready to trace.

Rows combine the embedding of the NEXT token with their own features; only layer 0 sees embeddings. Optional parts
(biases, norms) depend on the drafter.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..modelling_errors import modelling
from ..targets.semantic_patches import RotaryTable, Window, attend, rotate
from . import DrafterSpec

DRAFTERS_CONFIG = "the drafter's config.json"


class RMSNorm(nn.Module):
    """Root-mean-square norm: ``x / rms(x) * weight``."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last axis: [..., size] -> [..., size]."""
        return torch.ops.peagle.rms_norm(x, self.weight, self.eps)


class DrafterAttention(nn.Module):
    """Grouped-query attention over the drafter's own cache; layer 0 reads [embedding, features], 2H wide."""

    def __init__(self, spec: DrafterSpec, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv, self.dim = layer, spec.num_heads, spec.cache.heads, spec.cache.head_dim
        self.span = spec.windows[layer]
        width, biases = spec.hidden_size * (2 if layer == 0 else 1), spec.parts.biases
        self.q_proj = nn.Linear(width, self.heads * self.dim, bias="self_attn.q_proj" in biases)
        self.k_proj = nn.Linear(width, self.kv * self.dim, bias="self_attn.k_proj" in biases)
        self.v_proj = nn.Linear(width, self.kv * self.dim, bias="self_attn.v_proj" in biases)
        self.o_proj = nn.Linear(self.heads * self.dim, spec.hidden_size, bias="self_attn.o_proj" in biases)
        if spec.parts.qk_norm:
            self.q_norm, self.k_norm = (RMSNorm(self.dim, spec.rms_norm_eps) for _ in range(2))

    def forward(self, x: Tensor, window: Window, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend: [B,W,width] -> [B,W,H]."""
        b, w, _ = x.shape
        q = self.q_proj(x).view(b, w, self.heads, self.dim)
        k = self.k_proj(x).view(b, w, self.kv, self.dim)
        v = self.v_proj(x).view(b, w, self.kv, self.dim)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = rotate(q, cos, sin, window.positions), rotate(k, cos, sin, window.positions)
        y = attend(window, self.layer, q, k, v, self.dim**-0.5, self.span, 0.0, None)
        return self.o_proj(y.reshape(b, w, -1))


class MLP(nn.Module):
    """The SiLU-gated MLP of a layer."""

    def __init__(self, spec: DrafterSpec) -> None:
        super().__init__()
        h, inner, biases = spec.hidden_size, spec.intermediate_size, spec.parts.biases
        self.gate_proj = nn.Linear(h, inner, bias="mlp.gate_proj" in biases)
        self.up_proj = nn.Linear(h, inner, bias="mlp.up_proj" in biases)
        self.down_proj = nn.Linear(inner, h, bias="mlp.down_proj" in biases)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every position: [...,H] -> [...,H]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A pre-norm block. Layer 0 fuses embedding and features; its residual is the features, un-normed by default."""

    def __init__(self, spec: DrafterSpec, layer: int) -> None:
        super().__init__()
        h, eps = spec.hidden_size, spec.rms_norm_eps
        self.self_attn, self.mlp = DrafterAttention(spec, layer), MLP(spec)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(h, eps), RMSNorm(h, eps)
        self.norm_before_residual = spec.norm_before_residual
        if layer == 0:
            self.hidden_norm = RMSNorm(h, eps)

    def forward(self, x: Tensor, embedding: Tensor | None, window: Window, cos: Tensor, sin: Tensor) -> Tensor:
        """Run the block on ``x`` [B,W,H]; ``embedding`` [B,W,H] in layer 0 only."""
        if embedding is None:
            inner = self.input_layernorm(x)
        else:
            features = self.hidden_norm(x)
            inner = torch.cat([self.input_layernorm(embedding), features], -1)
            x = features if self.norm_before_residual else x
        x = x + self.self_attn(inner, window, cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class DrafterModules(nn.Module):
    """The modules common to all drafters."""

    def __init__(self, spec: DrafterSpec, rotary: RotaryTable) -> None:
        super().__init__()
        h, width = spec.hidden_size, len(spec.taps) * spec.target_hidden_size
        self.spec = spec
        self.embed_tokens = nn.Embedding(spec.vocab_size, h)
        self.fc = nn.Linear(width, h, bias=False)
        if spec.parts.input_norm:
            self.input_norm = RMSNorm(width, spec.rms_norm_eps)
        if spec.parts.fc_norms:
            self.fc_norm = nn.ModuleList(RMSNorm(spec.target_hidden_size, spec.rms_norm_eps) for _ in spec.taps)
        self.layers = nn.ModuleList(Layer(spec, i) for i in range(spec.num_layers))
        self.norm = RMSNorm(h, spec.rms_norm_eps)
        self.lm_head = nn.Linear(h, spec.draft_vocab_size, bias=False)
        self.rotary = rotary
        if spec.has_draft_vocabulary:
            self.d2t = nn.Buffer(torch.empty(spec.draft_vocab_size, dtype=torch.int64))

    def project(self, taps: Tensor) -> Tensor:
        """Fuse taps, [...,A*Ht] -> [...,H]; ``mask_hidden`` is processed like real features."""
        if self.spec.parts.input_norm:
            taps = self.input_norm(taps)
        if self.spec.parts.fc_norms:
            chunks = taps.split(self.spec.target_hidden_size, -1)
            taps = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], -1)
        return self.fc(taps)

    def run_layers(self, x: Tensor, row_ids: Tensor, window: Window) -> Tensor:
        """Map features x [B,W,H] and tokens i64 [B,W] of the window to hidden states [B,W,H], before the norm."""
        cos, sin = self.rotary()
        embedding = self.embed_tokens(row_ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, embedding if i == 0 else None, window, cos, sin)
        return x

    def draft_from(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Map normed hidden states [B,N,H] to target ids i64 [B,N] and logits [B,N,Vd]."""
        logits = self.lm_head(normed)
        drafts = logits.argmax(-1)
        if self.spec.has_draft_vocabulary:
            drafts = drafts + self.d2t[drafts]
        return drafts, logits


def drafter_rotary(drafter: DrafterSpec) -> RotaryTable:
    """Return the drafter's own rotary embedding, which may differ from the target's; computed by ``transformers``."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    heads, dim, rope = drafter.num_heads, drafter.cache.head_dim, dict(drafter.rope)
    trained = rope.get("original_max_position_embeddings", 2048)
    with modelling(DRAFTERS_CONFIG):
        config = LlamaConfig(
            hidden_size=heads * dim,  # the drafter's own need not be a multiple; only head_dim matters
            num_attention_heads=heads,
            head_dim=dim,
            max_position_embeddings=int(rope.get("factor", 1) * trained),
            rope_parameters=rope,
        )
        return RotaryTable(LlamaRotaryEmbedding(config))
