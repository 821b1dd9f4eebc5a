"""Dense Qwen3: the facts of Llama; its per-head q/k norms are in its modeling code and need no special handling."""

from __future__ import annotations

from typing import ClassVar

from .family import ONLY_KIND, Config
from .gguf_naming import IN_LAYERS, QK_NORMS, GgufNaming
from .llama import Llama


class Qwen3(Llama):
    """Dense Qwen3. All its layers are alike, although its configuration lists types."""

    name = "qwen3"
    architectures = ("Qwen3ForCausalLM",)
    gguf: ClassVar[tuple[GgufNaming, ...]] = (GgufNaming("qwen3", "qwen3", {**IN_LAYERS, **QK_NORMS}),)

    def layer_kinds(self, text: Config) -> tuple[str, ...]:
        """Return one kind for all layers."""
        return tuple(ONLY_KIND for _ in range(text["num_hidden_layers"]))
