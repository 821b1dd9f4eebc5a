"""GGUF naming of Gemma-4: sizes by kind of layer, the rotary table of full layers as divisors, the router's scales."""

from __future__ import annotations

from typing import Any

from ...plugins.errors import BuildError
from ...plugins.problems import shown
from .gguf_naming import IN_LAYERS, QK_NORMS, SIZES, GgufFacts, GgufNaming

_SLIDING, _FULL = "sliding_attention", "full_attention"
_PLAIN = {name: key for name, key in SIZES.items() if name not in ("head_dim", "num_key_value_heads", "rope_theta")}
_OTHER = "use the model's safetensors checkpoint"
_VARIANT = "this variant of Gemma-4 is not supported in GGUF files"


def _of_gguf(facts: GgufFacts) -> dict[str, Any]:
    """Return the settings per kind of layer. Raises ``BuildError`` for inconsistent values."""
    sliding, heads = _by_layer(facts, "attention.sliding_window_pattern"), _by_layer(facts, "attention.head_count_kv")
    full = [layer for layer, is_sliding in enumerate(sliding) if not is_sliding]
    kinds = {bool(is_sliding): count for is_sliding, count in zip(sliding, heads, strict=True)}
    if any(kinds[bool(is_sliding)] != count for is_sliding, count in zip(sliding, heads, strict=True)):
        raise BuildError("layers of one kind have different numbers of key heads", why=_VARIANT, fix=_OTHER)
    shared = [layer for layer in full if f"blk.{layer}.attn_v.weight" not in facts.names]
    if shared and shared != full:
        raise BuildError(
            "some full-attention layers have a separate value projection, while others reuse their keys",
            why=_VARIANT,
            fix=_OTHER,
        )
    return {
        "layer_types": [_SLIDING if is_sliding else _FULL for is_sliding in sliding],
        "num_key_value_heads": kinds.get(True, kinds.get(False)),
        "num_global_key_value_heads": kinds.get(False) if shared else None,
        "attention_k_eq_v": bool(shared),
        "enable_moe_block": bool(facts.metadata.get("expert_count")),
        "rope_parameters": {
            _FULL: {
                "rope_type": "proportional",
                "partial_rotary_factor": _rotated(facts.divisors),
                "rope_theta": facts.metadata.get("rope.freq_base"),
            },
            _SLIDING: {"rope_type": "default", "rope_theta": facts.metadata.get("rope.freq_base_swa")},
        },
    }


def _by_layer(facts: GgufFacts, key: str) -> list[Any]:
    """Return one value per layer; a single value applies to all."""
    value, layers = facts.metadata.get(key), facts.layers()
    every = value if isinstance(value, list) else [value] * len(layers)
    if len(every) != len(layers) or not every or any(type(each) not in (int, bool) for each in every):
        raise BuildError(
            f"gemma4.{key} must be a number, or one for each of {len(layers)} layers, not {shown(repr(value))}",
            fix=_OTHER,
        )
    return every


def _rotated(divisors: tuple[float, ...]) -> float:
    """Return the fraction of a full layer's frequencies that rotate; huge divisors disable the others."""
    if not divisors:
        raise BuildError(
            "rope_freqs.weight is missing, or is not one row of F32 values",
            why="this tensor defines which dimension pairs the rotary embedding rotates",
            fix=_OTHER,
        )
    num_rotated = sum(divisor == 1 for divisor in divisors)
    if other := [divisor for divisor in divisors if not (divisor == 1 or divisor >= _NEVER)]:
        raise BuildError(
            f"rope_freqs.weight has the value {other[0]:g}",
            why="for Gemma-4, each value must be 1 or at least 1e20",
            fix=_OTHER,
        )
    if not num_rotated:
        raise BuildError(
            "rope_freqs.weight has no value that is 1",
            why="no dimension pair of a full-attention layer would be rotated",
            fix=_OTHER,
        )
    return num_rotated / len(divisors)


_NEVER = 1e20  # a divisor that stops rotation within any text

NAMING = GgufNaming(
    "gemma4",
    "gemma4_text",
    {
        **IN_LAYERS,
        **QK_NORMS,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_up_exps": "experts.gate_up_proj",
        "ffn_down_exps": "experts.down_proj",
        "layer_output_scale": "layer_scalar",
    },
    {
        **_PLAIN,
        "head_dim": "attention.key_length_swa",
        "global_head_dim": "attention.key_length",
        "sliding_window": "attention.sliding_window",
        "final_logit_softcapping": "final_logit_softcapping",
        "num_experts": "expert_count",
        "top_k_experts": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    scales={"ffn_gate_inp": "router.scale", "ffn_down_exps": "router.per_expert_scale"},
    refused=("attention.shared_kv_layers", "embedding_length_per_layer_input", "expert_shared_count"),
    settings={"hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0},
    entries=_of_gguf,
    own_rope=True,
)
