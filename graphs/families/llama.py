"""Dense decoders of the Llama kind: Llama and Qwen3 (which adds q/k norms, inside its own modelling code)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...plugins.errors import BuildError
from .base import CacheSpec, TargetSpec, check_taps, default_taps, require


@dataclass(frozen=True)
class DenseFamily:
    """Grouped-query attention with one rotary table, a gated MLP, and an optionally tied head."""

    name: str
    architectures: tuple[str, ...]

    def describe(self, config: Mapping[str, Any], taps: Sequence[int] | None = None) -> TargetSpec:
        """Facts from ``config.json``; see ``TargetSpec``."""
        require(config, "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
        if config.get("use_sliding_window"):
            raise BuildError(
                "sliding-window layers are not supported in dense Qwen3/Llama targets",
                why="config.json sets use_sliding_window",
                fix="none of the published checkpoints of this family set it; report the model you need",
            )
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        cache = CacheSpec(config.get("num_key_value_heads") or heads, head_dim)
        return TargetSpec(
            family=self.name,
            architecture=config["architectures"][0],
            hidden_size=config["hidden_size"],
            num_layers=layers,
            vocab_size=config["vocab_size"],
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            caches=(cache,) * layers,
            taps=check_taps(default_taps(layers) if taps is None else taps, layers),
        )

    def model_class(self) -> type[Any]:
        """``transformers`` class for this family."""
        import transformers

        cls: type[Any] = getattr(transformers, self.architectures[0])
        return cls

    def tied(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        """The head is the embedding when ``tie_word_embeddings`` says so."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if config.get("tie_word_embeddings") else {}


LLAMA = DenseFamily("llama", ("LlamaForCausalLM",))
