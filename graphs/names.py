"""Names of weights, caches and layers in a graph, and of ONNX Runtime's operator domain."""

from __future__ import annotations

LM_HEAD = "lm_head"
CONTRIB = "com.microsoft"  # the domain of ONNX Runtime's own operators
EXPERT_WEIGHTS = ("gate_up_proj", "down_proj")


def layer_prefix(index: int) -> str:
    """Return the name prefix of a decoder layer's tensors."""
    return f"model.layers.{index}."


def cache_name(kind: str, layer: int) -> str:
    """Return the name of a layer's cache; ``kind`` is k or v."""
    return f"{kind}_cache.{layer}"


def weight_name(module: str) -> str:
    """Return the name of a linear module's weight."""
    return f"{module}.weight"


def module_of(weight: str) -> str:
    """Return the module name of a weight."""
    return weight.removesuffix(".weight")


def layer_of(name: str) -> int | None:
    """Return the layer index of a tensor; None if it is outside all layers."""
    parts = name.split(".")
    at = parts.index("layers") if "layers" in parts else len(parts)
    return int(parts[at + 1]) if parts[at + 1 : at + 2] else None
