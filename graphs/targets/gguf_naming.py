"""GGUF naming of a family: keys of sizes, names of tensors, and tensors with permuted rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,3})\.(.+)")

_MAX_LAYERS = 1_000
# Parameters of a layer or a module, not of a module of their own.
_PARAMETERS = ("layer_scalar", "self_attn.sinks", "experts.gate_up_proj", "experts.down_proj")

SIZES: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
"""Entries of a ``config.json`` by their GGUF keys without the architecture's name."""

TENSORS: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""Modules outside the layers."""

IN_LAYERS: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Modules of a layer of a plain decoder."""

QK_NORMS: Mapping[str, str] = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


def _nothing(_: GgufFacts) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class GgufFacts:
    """Facts in a file about its model: metadata without the architecture's name, and tensor names.

    ``divisors`` divide the frequencies of the rotary embedding, if the file has them.
    """

    metadata: Mapping[str, Any]
    names: frozenset[str]
    divisors: tuple[float, ...] = ()

    def layers(self) -> range:
        """The layer indices; empty if the number is unknown."""
        count = self.metadata.get("block_count")
        return range(count if type(count) is int and 0 < count <= _MAX_LAYERS else 0)


@dataclass(frozen=True)
class GgufNaming:
    """The value of ``general.architecture`` for a family, and differences between GGUF and ``config.json``.

    ``sizes`` and the modules are as in the tables above; ``in_stacks`` are modules that hold all experts in one tensor,
    with the name of each expert's part, and ``as_stacks`` those of a model that has such tensors itself, transposed:
    the modules, in turn row by row if there are several, by the model's name. ``model_type`` is that of transformers.
    ``in_turn`` are modules whose rows llama.cpp's converter reorders: RoPE pairs are adjacent, while ``config.json``'s
    model has them half a head apart. ``scales`` are the model's names of parameters that a file calls the scale of a
    module. ``refused`` are keys that make it a different model unless they are 0.
    ``settings`` are added to the configuration, and so is the result of ``entries`` for a file, which may raise
    ``BuildError``. ``own_rope``: these entries include the rotary embedding. ``end_keys`` are tokens that end a turn,
    besides those that a file names.
    """

    architecture: str
    model_type: str
    in_layers: Mapping[str, str] = field(default_factory=lambda: IN_LAYERS)
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZES)
    in_turn: tuple[str, ...] = ()
    scales: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ("attention.sliding_window", "expert_count")
    settings: Mapping[str, object] = field(default_factory=lambda: {"hidden_act": "silu", "attention_bias": False})
    in_stacks: Mapping[str, str] = field(default_factory=dict)
    as_stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    entries: Callable[[GgufFacts], Mapping[str, Any]] = _nothing
    own_rope: bool = False
    end_keys: tuple[str, ...] = ()

    def canonical(self, name: str) -> str | None:
        """Return the model's name of a tensor in a file; None if the family has none."""
        module, _, kind = name.rpartition(".")
        match = _BLOCK.fullmatch(module)
        if kind == "scale":
            return f"model.layers.{match[1]}.{self.scales[match[2]]}" if match and match[2] in self.scales else None
        if kind not in ("weight", "bias"):
            return None
        if module in TENSORS:
            return f"{TENSORS[module]}.{kind}"
        inside = self.in_layers.get(match[2]) if match else None
        if match is None or inside is None:
            return None
        return f"model.layers.{match[1]}.{inside}" + ("" if inside in _PARAMETERS else f".{kind}")

    def expert(self, name: str) -> str | None:
        """Return the model's name of each expert's part of a stack, with ``{}`` for its number."""
        match = _BLOCK.fullmatch(name.removesuffix(".weight"))
        inside = self.in_stacks.get(match[2]) if match else None
        return f"model.layers.{match[1]}.mlp.experts.{{}}.{inside}.weight" if match and inside else None

    def stack(self, name: str) -> tuple[str, int, int] | None:
        """Return the model's name of a stack of experts, and which of how many parts of it a tensor in a file is."""
        module, _, kind = name.rpartition(".")
        match = _BLOCK.fullmatch(module)
        for inside, parts in self.as_stacks.items():
            if match and match[2] in parts and kind in ("weight", "bias"):
                suffix = "_bias" if kind == "bias" else ""
                return f"model.layers.{match[1]}.{inside}{suffix}", parts.index(match[2]), len(parts)
        return None

    def is_interleaved(self, name: str) -> bool:
        """Return True if the rows of a tensor in a file must be reordered."""
        match = _BLOCK.fullmatch(name.rpartition(".")[0])
        return match is not None and match[2] in self.in_turn
