"""The P-EAGLE drafter in plain PyTorch: module, checkpoint layout, attention with a cache.

Row p of the drafter holds the embedding of token p + 1 and the target's auxiliary hidden states at position p, and
predicts token p + 2.  A placeholder row holds the mask token and the learned `mask_hidden` instead; the j-th
placeholder after row p sits at position p + j and predicts token p + 2 + j.  So one causal pass over the new real rows
and K - 1 placeholders proposes K tokens.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional


class Attend(Protocol):
    """Decides what each row attends to, which differs between training and inference.

    q [B, heads, T, head_dim]; k, v [B, kv_heads, T, head_dim] of the rows of this call -> [B, heads, T, head_dim].
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class DrafterConfig:
    """Sizes of the drafter, and the origin of its inputs."""

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    draft_vocab_size: int
    ptd_token_id: int
    max_position_embeddings: int
    num_speculative_tokens: int
    aux_layers: tuple[int, ...]

    @property
    def aux_size(self) -> int:
        return len(self.aux_layers) * self.target_hidden_size

    def to_json(self) -> str:
        """Return the flat checkpoint layout (one dictionary, auxiliary layers inside `eagle_config`)."""
        sizes = asdict(self)
        taps = list(sizes.pop("aux_layers"))
        content: dict[str, Any] = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **sizes,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "norm_before_residual": False,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": taps},
        }
        return json.dumps(content, indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> DrafterConfig:
        content = json.loads(text)
        content["aux_layers"] = tuple(content["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
        return DrafterConfig(**{name: content[name] for name in DrafterConfig.__dataclass_fields__})


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding, rotate-half form.  x [B, heads, T, head_dim]; cos, sin [T, head_dim]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    def __init__(self, config: DrafterConfig, input_size: int):
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(input_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(input_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(input_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, layer: int) -> Tensor:
        """x [B, T, input_size] -> [B, T, hidden_size]."""
        batch, rows, _ = x.shape
        q = self.q_proj(x).view(batch, rows, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, rows, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, rows, self.kv_heads, self.head_dim).transpose(1, 2)
        y = attend(layer, rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A Llama block; the first one attends over [embedding, features], each half with its own norm."""

    def __init__(self, config: DrafterConfig, first: bool):
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.hidden_norm = RMSNorm(size, eps) if first else None
        self.self_attn = Attention(config, 2 * size if first else size)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, embedding: Tensor, cos: Tensor, sin: Tensor, attend: Attend, layer: int) -> Tensor:
        """x, embedding [B, T, hidden_size] -> [B, T, hidden_size]; later blocks ignore `embedding`."""
        if self.hidden_norm is not None:
            normed = torch.cat([self.input_layernorm(embedding), self.hidden_norm(x)], -1)
        else:
            normed = self.input_layernorm(x)
        x = x + self.self_attn(normed, cos, sin, attend, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """The head; parameter names are those of the checkpoint."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(config.aux_size, config.hidden_size, bias=False)
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, config.aux_size))
        self.midlayer = Layer(config, first=True)
        later = {str(i): Layer(config, first=False) for i in range(1, config.num_hidden_layers)}
        self.layers = nn.ModuleDict(later)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def forward(self, ids: Tensor, aux: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Map ids int64 [B, T], aux [B, T, aux_size], positions int64 [T] to normed hidden states [B, T, hidden_size].

        `lm_head` turns the relevant rows into logits.
        """
        return self.norm(self.blocks(ids, self.fc(aux), positions, attend))

    def blocks(self, ids: Tensor, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """ids int64 [B, T], features x [B, T, hidden_size], positions int64 [T] -> hidden states before the norm."""
        dim, theta = self.config.head_dim, self.config.rope_theta
        frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim)
        angle = torch.outer(positions.float(), frequency).repeat(1, 2)
        cos, sin = angle.cos(), angle.sin()
        embedding = self.embed_tokens(ids)
        for i, layer in enumerate([self.midlayer, *self.layers.values()]):
            x = layer(x, embedding, cos, sin, attend, i)
        return x


class CausalCache:
    """Attention at inference: a row attends to all rows of earlier calls, and to its own call's rows up to itself."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer in self.layers:
            keys, values = self.layers[layer]
            k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        self.layers[layer] = k, v
        rows, total = q.shape[2], k.shape[2]
        mask = torch.ones(rows, total, dtype=torch.bool).tril(total - rows)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def keep(self, rows: int) -> None:
        """Drop everything after the first `rows` rows."""
        self.layers = {i: (k[:, :, :rows], v[:, :, :rows]) for i, (k, v) in self.layers.items()}


def save_drafter(model: Drafter, folder: Path) -> None:
    """Write config.json and model.safetensors (bfloat16)."""
    weights = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(model.config.to_json())


def load_drafter(folder: Path) -> Drafter:
    """Load the shipped (bfloat16-rounded) weights for computation in float32."""
    model = Drafter(DrafterConfig.from_json((folder / "config.json").read_text()))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    model.eval().requires_grad_(False)
    return model
