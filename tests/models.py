"""Tiny random models: real architectures, real key names, seconds to trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from peagle.graphs.families import TargetSpec, family_for
from peagle.graphs.heads import HeadSpec

VOCAB = 96
LAYERS = 7

_COMMON = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
_ROPE_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": _COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "llama": _COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False,
                        "rope_parameters": _ROPE_LLAMA3},
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A target folder and a head folder that fits it."""

    target: Path
    head: Path

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.target / "config.json").read_text())

    @property
    def head_config(self) -> dict[str, Any]:
        return json.loads((self.head / "config.json").read_text())

    def specs(self) -> tuple[TargetSpec, HeadSpec]:
        family = family_for(self.config)
        shapes = {n: tuple(t.shape) for n, t in load_file(self.head / "model.safetensors").items()}
        target = family.describe(self.config)
        head = HeadSpec.read(self.head_config, shapes, target)
        return family.describe(self.config, head.taps), head

    def target_tensor(self, key: str) -> np.ndarray:
        stored = family_for(self.config).tied(self.config).get(key, key)
        return load_file(self.target / "model.safetensors")[stored].float().numpy()

    def head_weights(self) -> dict[str, torch.Tensor]:
        """By module name, as the reference takes them."""
        _, head = self.specs()
        tensors = load_file(self.head / "model.safetensors")
        return {name: tensors[key] for name, key in head.keys.items()}


def head_tensors(generator: torch.Generator, draft_vocab: int, layers: int = 2) -> dict[str, torch.Tensor]:
    """Random head in the flat layout for the tiny targets."""
    h, q, kv, inner = 48, 64, 32, 80
    shapes = {
        "embed_tokens.weight": (VOCAB, h), "fc.weight": (h, 3 * h), "mask_hidden": (1, 1, 3 * h),
        "norm.weight": (h,), "lm_head.weight": (draft_vocab, h), "midlayer.hidden_norm.weight": (h,),
    }  # fmt: skip
    for i in range(layers):
        name, width = ("midlayer", 2 * h) if i == 0 else (f"layers.{i}", h)
        shapes |= {
            f"{name}.self_attn.q_proj.weight": (q, width), f"{name}.self_attn.k_proj.weight": (kv, width),
            f"{name}.self_attn.v_proj.weight": (kv, width), f"{name}.self_attn.o_proj.weight": (h, q),
            f"{name}.mlp.gate_proj.weight": (inner, h), f"{name}.mlp.up_proj.weight": (inner, h),
            f"{name}.mlp.down_proj.weight": (h, inner), f"{name}.input_layernorm.weight": (h,),
            f"{name}.post_attention_layernorm.weight": (h,),
        }  # fmt: skip
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * noise if "norm" in name else 0.15 * noise
    if draft_vocab < VOCAB:
        chosen = torch.randperm(VOCAB, generator=generator)[:draft_vocab].sort().values
        tensors["d2t"] = chosen - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, chosen, True)
    return tensors


def make_pair(folder: Path, family: str, *, draft_vocab: int = VOCAB) -> Pair:
    """Write a random target of ``family`` and a random head for it, with a byte-level tokenizer."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    config = CONFIGS[family]
    torch.manual_seed(0)
    cls = getattr(transformers, config["architectures"][0])
    model = cls(cls.config_class.from_dict(config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in name else 0.08))
    target, head = folder / "target", folder / "head"
    model.save_pretrained(target)
    letters = ["<eos>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCAB - 2]]
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(target / "tokenizer.json"))
    head.mkdir(parents=True)
    head_config = {k: v for k, v in _COMMON.items() if not k.endswith("_token_id")} | {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 2,
        "draft_vocab_size": draft_vocab, "ptd_token_id": 1, "rope_theta": 10000.0, "num_speculative_tokens": 6,
    }  # fmt: skip
    (head / "config.json").write_text(json.dumps(head_config))
    save_file(head_tensors(torch.Generator().manual_seed(3), draft_vocab), head / "model.safetensors")
    return Pair(target, head)
