"""GPT-OSS 20B and 120B: attention sinks, alternating sliding windows, clamped SwiGLU experts with biases, YaRN."""

from __future__ import annotations

import re

from .check_config import Entries
from .family import SIZES, Config, Family, Piece, Shape

_EXPERTS = re.compile(r"model\.layers\.\d+\.mlp\.experts\.(gate_up_proj|down_proj)")


class GptOss(Family):
    """GPT-OSS, whose experts are stored ``[E, in, out]``, gate and up columns in turn; the graph wants them turned."""

    name = "gpt-oss"
    architectures = ("GptOssForCausalLM",)
    own_swiglu = "clamped, steeper than SiLU, with 1 added to what is gated"
    entries = Entries(
        (*SIZES, "num_local_experts", "num_experts_per_tok", "sliding_window"),
        layer_kinds=("sliding_attention", "full_attention"),
    )

    def layer_kinds(self, text: Config) -> tuple[str, ...]:
        """Return the stated kinds, else sliding and full in turn."""
        layers = range(text["num_hidden_layers"])
        stated = text.get("layer_types")
        return tuple(stated or ("full_attention" if i % 2 else "sliding_attention" for i in layers))

    def sources(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """Turn expert weights. MXFP4 blocks are stored the other way round, which the reader of that format hides."""
        return (Piece((name,), "transpose" if _EXPERTS.fullmatch(name) else "copy"),)
