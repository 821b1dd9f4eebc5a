"""Random drafter heads of every kind the reader knows, in vLLM's flat layout and in that of ``speculators``."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from peagle.graphs.drafters import DrafterSpec, read_drafter
from peagle.graphs.targets import TargetSpec, family_for
from tests.models import CONFIGS, VOCAB

LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


@dataclass(frozen=True)
class Head:
    """A checkpoint in memory, and the target it is for."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    target: TargetSpec

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    @property
    def spec(self) -> DrafterSpec:
        return read_drafter(self.config, self.shapes, self.target)

    def weights(self) -> dict[str, torch.Tensor]:
        """By module name, as the reference takes them."""
        return {name: self.tensors[key] for name, key in self.spec.keys.items()}

    def as_speculators(self) -> Head:
        """The same head as the ``speculators`` package saves it."""
        own = {"architectures", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "norm_before_residual"}
        config = deepcopy(self.config)
        depth, mask = config.pop("num_speculative_tokens"), config.pop("ptd_token_id")
        eagle = {"norm_before_fc": False, "fc_norm": False, "norm_output": False} | config.pop("eagle_config", {})
        scaling = config.pop("rope_scaling", {})
        rope = {"rope_type": scaling.pop("type", "default"), "rope_theta": config.pop("rope_theta")} | scaling
        nested = {name: value for name, value in config.items() if name not in own} | {"rope_parameters": rope}
        return replace(
            self,
            config={name: value for name, value in config.items() if name in own} | eagle | {
                "architectures": ["PEagleDraftModel"], "speculators_model_type": "peagle", "mask_token_id": mask,
                "speculators_version": "0.9.0", "tie_word_embeddings": False, "embed_requires_grad": True,
                "auto_map": {"": "config.PEagleSpeculatorConfig"}, "target_hidden_size": None,
                "transformer_layer_config": nested,
                "speculators_config": {
                    "algorithm": "peagle", "default_proposal_method": "greedy",
                    "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": depth}],
                    "verifier": {"name_or_path": "some/model", "architectures": ["Qwen3ForCausalLM"]},
                },
            },
            tensors={name.replace("midlayer.", "layers.0."): tensor for name, tensor in self.tensors.items()},
        )  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The parts of a head; ``config`` is merged over what follows from the rest."""

    hidden: int = 48
    target_hidden: int = 48
    inner: int = 80
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    taps: int = 3
    draft_vocab: int = VOCAB
    biases: tuple[str, ...] = ()
    qk_norm: bool = False
    input_norm: bool = False
    fc_norm: bool = False
    config: dict[str, Any] = field(default_factory=dict)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """In the flat layout."""
        h, features = self.hidden, self.taps * self.target_hidden
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (VOCAB, h), "fc.weight": (h, features), "mask_hidden": (1, 1, features),
            "norm.weight": (h,), "lm_head.weight": (self.draft_vocab, h), "midlayer.hidden_norm.weight": (h,),
        }  # fmt: skip
        if self.input_norm:
            shapes["input_norm.weight"] = (features,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{i}.weight": (self.target_hidden,) for i in range(self.taps)}
        for i in range(self.layers):
            layer, width = ("midlayer", 2 * h) if i == 0 else (f"layers.{i}", h)
            linears = {
                "self_attn.q_proj": (q, width), "self_attn.k_proj": (kv, width), "self_attn.v_proj": (kv, width),
                "self_attn.o_proj": (h, q), "mlp.gate_proj": (self.inner, h), "mlp.up_proj": (self.inner, h),
                "mlp.down_proj": (h, self.inner),
            }  # fmt: skip
            for name, shape in linears.items():
                shapes[f"{layer}.{name}.weight"] = shape
                if name in self.biases:
                    shapes[f"{layer}.{name}.bias"] = shape[:1]
            shapes |= {f"{layer}.{name}.weight": (h,) for name in ("input_layernorm", "post_attention_layernorm")}
            if self.qk_norm:
                shapes |= {f"{layer}.self_attn.{name}.weight": (self.head_dim,) for name in ("q_norm", "k_norm")}
        return shapes

    def make(self, seed: int = 0) -> Head:
        """Random weights of this form."""
        generator = torch.Generator().manual_seed(seed)
        tensors = {}
        for name, shape in self.shapes().items():
            noise = torch.randn(shape, generator=generator)
            tensors[name] = 1 + 0.2 * noise if "norm" in name else 0.15 * noise
        if self.draft_vocab < VOCAB:
            chosen = torch.randperm(VOCAB, generator=generator)[: self.draft_vocab].sort().values
            tensors["d2t"] = chosen - torch.arange(self.draft_vocab)
            tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, chosen, True)
        target = CONFIGS["qwen3"] | {"hidden_size": self.target_hidden}
        config = {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": self.inner, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "vocab_size": VOCAB,
            "draft_vocab_size": self.draft_vocab, "ptd_token_id": 1, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
            "num_speculative_tokens": 6, "max_position_embeddings": 256,
        }  # fmt: skip
        taps = self.config.get("eagle_aux_hidden_state_layer_ids")
        return Head(config | deepcopy(self.config), tensors, family_for(target).describe(target).with_taps(taps))


_ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
_MLP = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))
_SLIDING = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5, "use_sliding_window": True}

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

FORMS: dict[str, Form] = {
    "plain": Form(),
    "own vocabulary, residual normed": Form(layers=3, draft_vocab=VOCAB - 30, config={"norm_before_residual": True}),
    "all biases, llama3 rope": Form(
        layers=1,
        biases=_ATTENTION + _MLP,
        config={"attention_bias": True, "mlp_bias": True, "rope_scaling": LLAMA3},
    ),
    "one norm before fc, wider target": Form(
        layers=1,
        target_hidden=64,
        input_norm=True,
        config={"target_hidden_size": 64, "eagle_config": {"norm_before_fc": True}},
    ),
    "a norm per tap, five taps": Form(
        layers=1,
        taps=5,
        fc_norm=True,
        config={
            "eagle_config": {"fc_norm": True, "norm_output": True},
            "eagle_aux_hidden_state_layer_ids": [0, 2, 3, 4, 6],
        },
    ),
    "norms of q and k, yarn rope": Form(qk_norm=True, config={"model_type": "qwen3", "rope_scaling": _YARN}),
    "sliding window": Form(config=_SLIDING),
    "qkv biases, odd widths, linear rope": Form(
        layers=1,
        hidden=50,
        heads=3,
        kv_heads=1,
        head_dim=24,
        biases=_ATTENTION[:3],
        config={"rope_scaling": {"type": "linear", "factor": 3.0}},
    ),
    "everything": Form(
        taps=4,
        target_hidden=32,
        draft_vocab=VOCAB - 30,
        biases=_ATTENTION,
        qk_norm=True,
        fc_norm=True,
        config=_SLIDING
        | {
            "model_type": "qwen3",
            "norm_before_residual": True,
            "rope_scaling": LLAMA3,
            "eagle_config": {"fc_norm": True},
            "eagle_aux_hidden_state_layer_ids": [1, 2, 4, 5],
        },
    ),
}
