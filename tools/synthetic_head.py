"""A random P-EAGLE head for a synthetic target, in the flat layout of vLLM or in that of the speculators package."""

from __future__ import annotations

from typing import Any

from synthetic_weights import Noise, RandomTensor

LAYOUTS = ("flat", "speculators")
MIN_TARGET_LAYERS = 7  # from here on, the auxiliary layers 2, L // 2 and L - 3 differ

_TAPS = 3
_ROPE = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip


def head_tensors(text: dict[str, Any], layers: int, layout: str, noise: Noise) -> list[RandomTensor]:
    """Return the tensors, with the same order and numbers in both layouts; ``text`` is the target's text config."""
    sizes = _sizes(text)
    hidden, inner, vocab = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]
    q, kv = (sizes[key] * sizes["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocab, hidden),
        "fc.weight": (hidden, _TAPS * hidden),
        "mask_hidden": (1, 1, _TAPS * hidden),
        "layers.0.hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for i in range(layers):
        width = 2 * hidden if i == 0 else hidden
        shapes |= {
            f"layers.{i}.input_layernorm.weight": (hidden,),
            f"layers.{i}.self_attn.q_proj.weight": (q, width),
            f"layers.{i}.self_attn.k_proj.weight": (kv, width),
            f"layers.{i}.self_attn.v_proj.weight": (kv, width),
            f"layers.{i}.self_attn.o_proj.weight": (hidden, q),
            f"layers.{i}.post_attention_layernorm.weight": (hidden,),
            f"layers.{i}.mlp.gate_proj.weight": (inner, hidden),
            f"layers.{i}.mlp.up_proj.weight": (inner, hidden),
            f"layers.{i}.mlp.down_proj.weight": (hidden, inner),
        }
    tensors = []
    for number, (name, shape) in enumerate(shapes.items()):
        mean, std = 0.0, shape[-1] ** -0.5
        if "norm" in name:
            mean, std = 1.0, 0.1
        elif name in ("embed_tokens.weight", "mask_hidden"):
            std = 1.0
        stored = name.replace("layers.0.", "midlayer.") if layout == "flat" else name
        tensors.append(RandomTensor(stored, shape, number, mean, std, noise))
    return tensors


def head_config(config: dict[str, Any], layers: int, layout: str, depth: int) -> dict[str, Any]:
    """Return the head's ``config.json``; ``config`` is the target's, ``depth`` the K it declares to be trained for."""
    text = config.get("text_config", config)
    target_layers, vocab = text["num_hidden_layers"], text["vocab_size"]
    decoder = {
        "model_type": "llama", "num_hidden_layers": layers, **_sizes(text), "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": text["max_position_embeddings"], "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, **_ROPE,
    }  # fmt: skip
    if layout == "flat":
        return {
            "architectures": ["LlamaForCausalLMEagle3"], **decoder, "draft_vocab_size": vocab,
            "ptd_token_id": vocab - 1, "num_speculative_tokens": depth, "dtype": "bfloat16",
        }  # fmt: skip
    proposal = {
        "proposal_type": "greedy", "speculative_tokens": depth, "verifier_accept_k": 1, "accept_tolerance": 0.0,
    }  # fmt: skip
    return {
        "architectures": ["PEagleSpeculator"],
        "speculators_model_type": "peagle",
        "draft_vocab_size": vocab,
        "mask_token_id": vocab - 1,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": [2, target_layers // 2, target_layers - 3],
        "transformer_layer_config": decoder,
        "speculators_config": {
            "algorithm": "peagle",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": "../target", "architectures": config["architectures"]},
        },
        "dtype": "bfloat16",
    }


def _sizes(text: dict[str, Any]) -> dict[str, int]:
    """Return the head's sizes: the target's width, attention heads and vocabulary."""
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    return {key: text[key] for key in keys} | {"intermediate_size": 4 * text["hidden_size"]}
