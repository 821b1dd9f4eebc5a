"""GGUF naming of GPT-OSS: YaRN, sinks, and stacks of experts whose gate and up are separate."""

from __future__ import annotations

from typing import Any

from ...plugins.errors import BuildError
from ...plugins.problems import shown
from .gguf_naming import IN_LAYERS, SIZES, GgufFacts, GgufNaming

_PLAIN = {name: key for name, key in SIZES.items() if name not in ("intermediate_size", "rope_theta")}
_DENSE = ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


def _of_gguf(facts: GgufFacts) -> dict[str, Any]:
    """Return the rotary embedding. Raises ``BuildError`` for one that is not YaRN's."""
    scaling = {key: facts.metadata.get(f"rope.scaling.{key}") for key in ("type", "factor", "original_context_length")}
    if scaling["type"] != "yarn":
        raise BuildError(
            f"gpt-oss.rope.scaling.type is {shown(repr(scaling['type']))}",
            why="the model was trained with YaRN",
            fix="use the model's safetensors checkpoint",
        )
    return {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": facts.metadata.get("rope.freq_base"),
            "factor": scaling["factor"],
            "original_max_position_embeddings": scaling["original_context_length"],
            "beta_fast": 32.0,  # as in llama.cpp
            "beta_slow": 1.0,
            "truncate": False,
        }
    }


NAMING = GgufNaming(
    "gpt-oss",
    "gpt_oss",
    {
        **{name: inside for name, inside in IN_LAYERS.items() if name not in _DENSE},
        "attn_sinks": "self_attn.sinks",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
    },
    {
        **_PLAIN,
        "intermediate_size": "expert_feed_forward_length",
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "sliding_window": "attention.sliding_window",
    },
    refused=("expert_shared_count",),
    settings={"hidden_act": "silu", "attention_bias": True, "swiglu_limit": 7.0},
    as_stacks={
        "mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
        "mlp.experts.down_proj": ("ffn_down_exps",),
    },
    entries=_of_gguf,
    own_rope=True,
    end_keys=("<|return|>", "<|call|>", "<|endoftext|>"),
)
