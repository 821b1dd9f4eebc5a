"""Dense Qwen3: the Llama facts; its per-head q/k norms live in its modelling code and trace as they are."""

from __future__ import annotations

from .llama import DenseFamily

QWEN3 = DenseFamily("qwen3", ("Qwen3ForCausalLM",))
