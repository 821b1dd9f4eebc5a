"""Dense Llama: grouped-query attention with one rotary table, a gated MLP, and an optionally tied head."""

from __future__ import annotations

from typing import ClassVar

from ...plugins.errors import BuildError
from .family import Config, Family
from .gguf_naming import GgufNaming


class Llama(Family):
    """Dense Llama, the base of the other dense families."""

    name = "llama"
    architectures = ("LlamaForCausalLM",)
    gguf: ClassVar[tuple[GgufNaming, ...]] = (GgufNaming("llama", "llama", in_turn=("attn_q", "attn_k")),)

    def check(self, text: Config) -> None:
        """Reject sliding windows, which no published dense checkpoint uses."""
        if text.get("use_sliding_window"):
            raise BuildError(
                f"sliding-window layers are not supported in {self.name} targets",
                why="config.json sets use_sliding_window",
                fix="use another checkpoint, or report this one: no known checkpoint of this family sets it",
            )
