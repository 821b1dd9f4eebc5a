"""Tiny random models: real architectures, real key names, seconds to trace."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

    from peagle.compiler.checkpoints.target import Target
    from peagle.graphs.drafters import DrafterSpec
    from peagle.graphs.targets import TargetSpec

VOCAB = 96
LAYERS = 7

_COMMON = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
_COMMON_SIZES = {"hidden_size": 48, "intermediate_size": 80}
# Of a model with the fewest layers that three taps can be put into.
SHALLOW = _COMMON_SIZES | {"num_hidden_layers": 3}
# Of tiny models whose matrices are whole MX blocks of 32 columns.
BLOCKED = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32}
_ROPE_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_GEMMA4_TEXT = _COMMON | {
    "model_type": "gemma4_text", "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "sliding_window": 8, "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 3 + ["full_attention"],
}  # fmt: skip
_GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24}
_GEMMA4_VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 16,
    "default_output_length": 4, "pooling_kernel_size": 1,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": _COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "llama": _COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False,
                        "rope_parameters": _ROPE_LLAMA3},
    "qwen3-moe": _COMMON | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 6,
                            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
                            "decoder_sparse_step": 1, "mlp_only_layers": [3], "tie_word_embeddings": False,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "gpt-oss": _COMMON | {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "intermediate_size": 40,
                          "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 8, "swiglu_limit": 0.5,
                          "attention_bias": True, "tie_word_embeddings": False,
                          "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0,
                                              "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                              "original_max_position_embeddings": 64}},
    "gemma-4": {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
                "text_config": _GEMMA4_TEXT, "vision_config": _GEMMA4_VISION, "audio_config": None,
                "image_token_id": 90, "boi_token_id": 91, "eoi_token_id": 92, "audio_token_id": 93,
                "boa_token_id": 94, "eoa_token_id": 95, "video_token_id": 89, "eos_token_id": 0},
}  # fmt: skip
CONFIGS["gemma-4-moe"] = CONFIGS["gemma-4"] | {"text_config": _GEMMA4_TEXT | _GEMMA4_EXPERTS}


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

    def specs(self) -> tuple[TargetSpec, DrafterSpec]:
        from safetensors.torch import load_file

        from peagle.graphs.drafters import read_drafter
        from peagle.graphs.targets import family_for

        shapes = {n: tuple(t.shape) for n, t in load_file(self.head / "model.safetensors").items()}
        target = family_for(self.config).describe(self.config)
        head = read_drafter(self.head_config, shapes, target)
        return target.with_taps(head.taps), head

    def opened(self) -> Target:
        """The target with the taps of its head."""
        from peagle.compiler.checkpoints.target import Target

        spec, _ = self.specs()
        return Target.open(self.target).with_taps(spec.taps)

    def target_weights(self) -> Callable[[str], Iterator[np.ndarray]]:
        """Return the graph's weights by their names in it."""
        target = self.opened()
        shapes, tied = target.skeleton.shapes, target.family.tied(self.config)
        return lambda name: target.read(name, shapes[tied.get(name, name)])

    def head_weights(self) -> dict[str, torch.Tensor]:
        """By module name, as the reference takes them."""
        from safetensors.torch import load_file

        _, head = self.specs()
        tensors = load_file(self.head / "model.safetensors")
        return {name: tensors[key] for name, key in head.keys.items()}


def head_tensors(
    generator: torch.Generator, draft_vocab: int, layers: int = 2, sizes: Mapping[str, int] = _COMMON_SIZES
) -> dict[str, torch.Tensor]:
    """Random head in the flat layout for the tiny targets."""
    import torch

    h, q, kv, inner = sizes["hidden_size"], 64, 32, sizes["intermediate_size"]
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


def save_target(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a random target with this configuration, as transformers saves it, with a byte-level tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    cls = getattr(transformers, config["architectures"][0])
    model = cls(cls.config_class.from_dict(copy.deepcopy(dict(config)))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "norm" in name or name.endswith("scale") else 0.0
            spread = 0.1 if "norm" in name else 0.5 if name.endswith(("bias", "sinks")) else 0.08
            spread = 0.2 if name.endswith("scale") else spread
            parameter.copy_(centre + torch.randn_like(parameter) * spread)
        for name, buffer in model.named_buffers():
            if "layer_scalar" in name:
                buffer.fill_(0.9)
    model.save_pretrained(folder)
    letters = ["<eos>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCAB - 2]]
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def eagle3_head(folder: Path, pair: Pair, *, draft_vocab: int = VOCAB, layers: int = 1, **entries: Any) -> Path:
    """Write a random EAGLE-3 head for the target of ``pair``, with these entries in its configuration."""
    import torch
    from safetensors.torch import save_file

    tensors = head_tensors(torch.Generator().manual_seed(4), draft_vocab, layers)
    del tensors["mask_hidden"]
    sizes = {"num_hidden_layers": layers, "draft_vocab_size": draft_vocab, "ptd_token_id": None}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(pair.head_config | sizes | entries))
    save_file(tensors, folder / "model.safetensors")
    return folder


def make_pair(folder: Path, family: str, *, draft_vocab: int = VOCAB, sizes: Mapping[str, int] = _COMMON_SIZES) -> Pair:
    """Write a random target of ``family`` and a random head for it, with a byte-level tokenizer."""
    import torch
    from safetensors.torch import save_file

    config = copy.deepcopy(CONFIGS[family])
    if sizes is not _COMMON_SIZES:
        config.get("text_config", config).update(sizes)
    target, head = save_target(folder / "target", config), folder / "head"
    head.mkdir(parents=True)
    head_config = {k: sizes.get(k, v) for k, v in _COMMON.items() if not k.endswith("_token_id")} | {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 2,
        "draft_vocab_size": draft_vocab, "ptd_token_id": 1, "rope_theta": 10000.0, "num_speculative_tokens": 6,
    }  # fmt: skip
    if sizes is SHALLOW:
        head_config["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]
    (head / "config.json").write_text(json.dumps(head_config))
    save_file(head_tensors(torch.Generator().manual_seed(3), draft_vocab, sizes=sizes), head / "model.safetensors")
    return Pair(target, head)


def make_shallow_pair(folder: Path, family: str) -> Pair:
    """For a test that does not depend on the number of layers: few, in a family whose config has no list of them."""
    return make_pair(folder, family, sizes=SHALLOW if family in ("llama", "qwen3", "gpt-oss") else _COMMON_SIZES)
