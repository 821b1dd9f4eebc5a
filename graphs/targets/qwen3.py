"""Dense Qwen3: the Llama facts; its per-head q/k norms live in its modelling code and trace as they are."""

from __future__ import annotations

from .family import Config
from .llama import Llama


class Qwen3(Llama):
    """Dense Qwen3, whose layers are all alike although its configuration names their types."""

    name = "qwen3"
    architectures = ("Qwen3ForCausalLM",)

    def layer_kinds(self, text: Config) -> tuple[str, ...]:
        """Return one kind for all layers."""
        return tuple("layer" for _ in range(text["num_hidden_layers"]))
