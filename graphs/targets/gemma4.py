"""Gemma-4 (31B, and 26B-A4B with routed experts): the text decoder inside a multimodal checkpoint.

Sliding and full layers differ in key heads, head size and rotary table; full layers use their keys as values; every
layer ends with a scalar multiplication, and the logits have a soft cap. Routed experts are added to the dense MLP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ...plugins.errors import BuildError
from ...plugins.problems import shown
from ..config_values import ROPE_NEEDS
from .check_config import Entries
from .family import SIZES, CacheSpec, Config, Family, Piece, Shape
from .gemma4_gguf import NAMING
from .gguf_naming import GgufNaming

_INSIDE = "model.language_model."
_FULL = "full_attention"
_FULL_HEAD_DIM = 512  # the default in transformers
_LAYER_SIZES = ("num_key_value_heads", "head_dim")  # which may differ by layer
_MIXTURE = "enable_moe_block"
_OF_EXPERTS = ("num_experts", "top_k_experts", "moe_intermediate_size")
_GATE_UP = re.compile(r"model\.layers\.\d+\.experts\.gate_up_proj")
_TOWERS = ("model.vision_tower.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio.")


class Gemma4(Family):
    """Gemma-4 from multimodal checkpoints (keys below ``model.language_model``), without the towers."""

    name = "gemma-4"
    architectures = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
    gguf: ClassVar[tuple[GgufNaming, ...]] = (NAMING,)
    entries = Entries(
        (*SIZES, *_LAYER_SIZES, "sliding_window"),
        layer_kinds=("sliding_attention", _FULL),
        rope_kinds=(*ROPE_NEEDS, "proportional"),
        by_layer=_LAYER_SIZES,
    )

    def text(self, config: Config) -> Config:
        """Return the nested configuration, if there is one."""
        nested = config.get("text_config") or config
        if not isinstance(nested, Mapping):
            raise BuildError(
                f"config.json has no decoder: text_config must be an object, not {shown(repr(nested))}",
                fix="use the config.json that belongs to the weights",
            )
        return nested

    def check(self, text: Config) -> None:
        """Reject variants of other sizes, which have unsupported parts, and experts without sizes."""
        parts = {
            "hidden_size_per_layer_input": "per-layer embeddings (E2B, E4B)",
            "num_kv_shared_layers": "layers that share another layer's cache (E2B, E4B)",
        }
        extras = [part for entry, part in parts.items() if text.get(entry)]
        if extras:
            raise BuildError(
                f"this Gemma-4 variant is not supported: it has {', '.join(extras)}",
                why="only the variants 31B and 26B-A4B were built and tested",
                fix="use a checkpoint of one of these variants",
            )
        if missing := [entry for entry in _OF_EXPERTS if text.get(_MIXTURE) and text.get(entry) is None]:
            raise BuildError(
                f"the config lacks {', '.join(missing)}",
                why=f"the config sets {_MIXTURE}, so the model has routed experts",
                fix="use the config.json that belongs to the weights",
            )

    def other_activation(self, text: Config) -> str:
        """Return GELU for a variant with routed experts."""
        return "GELU" if text.get(_MIXTURE) else ""

    def layer_kinds(self, text: Config) -> tuple[str, ...]:
        """Return the configured kinds, else five sliding layers, then a full one; the last is always full."""
        layers = text["num_hidden_layers"]
        declared = text.get("layer_types") or ["sliding_attention" if (i + 1) % 6 else _FULL for i in range(layers)]
        return (*declared[:-1], _FULL)

    def caches(self, text: Config) -> tuple[CacheSpec, ...]:
        """Return the cache of every layer. Full layers have other heads, set once or (transformers 5) by layer."""
        sliding = {name: text[name] for name in _LAYER_SIZES}
        declared = text.get("per_layer_config")
        by_layer = self._full_layers(text) if declared is None else _by_layer(declared)
        sizes = ({**sliding, **by_layer.get(i, {})} for i in range(text["num_hidden_layers"]))
        return tuple(CacheSpec(size["num_key_value_heads"], size["head_dim"]) for size in sizes)

    def _full_layers(self, text: Config) -> dict[int, Config]:
        """Return transformers' defaults for full layers without settings of their own."""
        heads = text.get("num_global_key_value_heads") if text.get("attention_k_eq_v") else None
        sizes: Config = {
            "num_key_value_heads": heads or text["num_key_value_heads"],
            "head_dim": text.get("global_head_dim", _FULL_HEAD_DIM),
        }
        return {i: sizes for i, kind in enumerate(self.layer_kinds(text)) if kind == _FULL}

    def keeping(self, config: Config, layers: Sequence[int]) -> dict[str, Any]:
        """Keep the settings of each kept layer."""
        text = super().keeping(config, layers)
        if text.get("per_layer_config") is not None:
            declared = _by_layer(text["per_layer_config"])
            text["per_layer_config"] = {str(new): declared[old] for new, old in enumerate(layers) if old in declared}
        return text

    def load(self, folder: Path, config: Config) -> Any:
        """Extract the decoder from the multimodal model."""
        if "text_config" not in config:
            return super().load(folder, config)
        import torch
        import transformers

        model = transformers.Gemma4ForConditionalGeneration.from_pretrained(
            str(folder), dtype=torch.float32, attn_implementation="eager"
        )
        with torch.device("meta"):
            decoder = self.model_class()(model.config.text_config)
        decoder.model, decoder.lm_head = model.model.language_model, model.lm_head
        return decoder.eval()

    def tied(self, config: Config) -> Mapping[str, str]:
        """Tie the LM head unless the outer or inner configuration unties it."""
        tied = self.text(config).get("tie_word_embeddings", config.get("tie_word_embeddings", True))
        return {"lm_head.weight": "model.embed_tokens.weight"} if tied else {}

    def untied(self, config: Config) -> dict[str, Any]:
        """Untie the LM head in the inner configuration too, which takes precedence."""
        outer = super().untied(config)
        return {**outer, "text_config": super().untied(self.text(config))} if config.get("text_config") else outer

    def canonical(self, key: str) -> str:
        """Remove the wrapper from a name: ``model.language_model.x`` becomes ``model.x``."""
        return "model." + key.removeprefix(_INSIDE) if key.startswith(_INSIDE) else key

    def sources(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """Interleave the rows of gate and up, which the checkpoint stores below each other."""
        return (Piece((name,), "halves" if _GATE_UP.fullmatch(name) else "copy"),)

    def ignored(self, key: str) -> bool:
        """Ignore the vision and audio towers as well."""
        return super().ignored(key) or key.startswith(_TOWERS)

    def patches(self) -> Mapping[str, Callable[..., Any]]:
        """Replace the rotary function, which takes one tensor ``[B,S,H,D]`` here."""
        from .semantic_patches import rotate_one

        return {"apply_rotary_pos_emb": rotate_one}

    def prepare(self, model: Any) -> None:
        """Compute the embedding's multiplier, which is not stored."""
        import torch

        embedding = model.model.embed_tokens
        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)


def _by_layer(declared: Config) -> dict[int, Config]:
    """Return the settings by layer. transformers pads layer numbers with zeros if there are more than ten."""
    return {int(layer): sizes for layer, sizes in declared.items()}
