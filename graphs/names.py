"""The names of weights, caches and layers in a graph, and of the domain that is ONNX Runtime's own."""

from __future__ import annotations

LM_HEAD = "lm_head"
CONTRIB = "com.microsoft"  # the domain of ONNX Runtime's own operators
EXPERT_WEIGHTS = ("gate_up_proj", "down_proj")


def layer_prefix(index: int) -> str:
    """The beginning of the names of a decoder layer's tensors."""
    return f"model.layers.{index}."


def cache_name(kind: str, layer: int) -> str:
    """The name of a layer's cache; ``kind`` is k or v."""
    return f"{kind}_cache.{layer}"


def weight_name(module: str) -> str:
    """The name of a linear module's weight."""
    return f"{module}.weight"


def module_of(weight: str) -> str:
    """The name of the module that a weight belongs to."""
    return weight.removesuffix(".weight")


def layer_of(name: str) -> int | None:
    """The index of the decoder layer that a tensor belongs to; None for one outside of all layers."""
    parts = name.split(".")
    at = parts.index("layers") if "layers" in parts else len(parts)
    return int(parts[at + 1]) if parts[at + 1 : at + 2] else None
