"""GPT-OSS 20B and 120B: attention sinks, alternating sliding windows, clamped SwiGLU experts with biases, YaRN."""

from __future__ import annotations

import re
from typing import ClassVar

from .check_config import Entries
from .family import SIZES, Config, Family, Piece, Shape
from .gguf_naming import GgufNaming
from .gpt_oss_gguf import NAMING

_EXPERTS = re.compile(r"model\.layers\.\d+\.mlp\.experts\.(gate_up_proj|down_proj)")


class GptOss(Family):
    """GPT-OSS, with experts stored as ``[E, in, out]`` and interleaved gate and up columns; the graph transposes it."""

    name = "gpt-oss"
    architectures = ("GptOssForCausalLM",)
    gguf: ClassVar[tuple[GgufNaming, ...]] = (NAMING,)
    own_swiglu = "clamped, steeper than SiLU, and 1 is added to the gated value"
    entries = Entries(
        (*SIZES, "num_local_experts", "num_experts_per_tok", "sliding_window"),
        layer_kinds=("sliding_attention", "full_attention"),
    )

    def layer_kinds(self, text: Config) -> tuple[str, ...]:
        """Return the configured kinds, else sliding and full in turn."""
        layers = range(text["num_hidden_layers"])
        declared = text.get("layer_types")
        return tuple(declared or ("full_attention" if i % 2 else "sliding_attention" for i in layers))

    def sources(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """Transpose expert weights. The MXFP4 reader already presents its blocks in the same layout."""
        return (Piece((name,), "transpose" if _EXPERTS.fullmatch(name) else "copy"),)
