"""Qwen3-MoE (Qwen3-Coder-30B-A3B): Qwen3 attention, routed experts stored one by one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from .check_config import Entries
from .family import SIZES, Config, Piece, Shape
from .gguf_naming import IN_LAYERS, QK_NORMS, GgufNaming
from .gguf_naming import SIZES as GGUF_SIZES
from .qwen3 import Qwen3

_EXPERTS = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(gate_up_proj|down_proj)")


class Qwen3Moe(Qwen3):
    """Qwen3-MoE: ``experts.E.{gate,up,down}_proj.weight`` on disk, one tensor of all experts in the graph."""

    name = "qwen3-moe"
    architectures = ("Qwen3MoeForCausalLM",)
    gguf: ClassVar[tuple[GgufNaming, ...]] = (
        GgufNaming(
            "qwen3moe",
            "qwen3_moe",
            {**IN_LAYERS, **QK_NORMS, "ffn_gate_inp": "mlp.gate"},
            {
                **GGUF_SIZES,
                "num_experts": "expert_count",
                "num_experts_per_tok": "expert_used_count",
                "moe_intermediate_size": "expert_feed_forward_length",
            },
            refused=("attention.sliding_window", "expert_shared_count", "expert_shared_feed_forward_length"),
            in_stacks={"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"},
            settings={  # as in llama.cpp: all layers have experts, and the weights of the chosen ones sum to 1
                "hidden_act": "silu",
                "attention_bias": False,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "norm_topk_prob": True,
            },
        ),
    )
    entries = Entries((*SIZES, "num_experts", "num_experts_per_tok", "moe_intermediate_size"))

    def text(self, config: Config) -> Config:
        """Rename ``num_local_experts``, as transformers 5 saves it, to the published ``num_experts``."""
        return config if "num_experts" in config else {**config, "num_experts": config.get("num_local_experts")}

    def layer_kinds(self, text: Config) -> tuple[str, ...]:
        """Return sparse layers except where the configuration exempts them."""
        step, dense = text.get("decoder_sparse_step") or 1, text.get("mlp_only_layers") or ()
        layers = range(text["num_hidden_layers"])
        return tuple("sparse" if i not in dense and (i + 1) % step == 0 else "dense" for i in layers)

    def keeping(self, config: Config, layers: Sequence[int]) -> dict[str, Any]:
        """Keep sparse and dense layers as such at their new positions."""
        kinds = self.layer_kinds(self.text(config))
        dense = [new for new, old in enumerate(layers) if kinds[old] == "dense"]
        return super().keeping(config, layers) | {"decoder_sparse_step": 1, "mlp_only_layers": dense}

    def sources(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """Stack the experts in ascending order, with interleaved gate and up rows."""
        match = _EXPERTS.fullmatch(name)
        if not match:
            return super().sources(name, shape)
        prefix, kind = match.groups()
        if kind == "down_proj":
            return tuple(Piece((f"{prefix}.{e}.down_proj.weight",), "stack") for e in range(shape[0]))
        return tuple(
            Piece((f"{prefix}.{e}.gate_proj.weight", f"{prefix}.{e}.up_proj.weight"), "interleave")
            for e in range(shape[0])
        )
