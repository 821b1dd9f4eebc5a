"""Quantization scheme of each weight, from its format's record for the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins.number_formats import NUMBER_FORMATS, Scheme, format_stored_as, kernels_of
from ...plugins.ops.quantized_linear.packed_weights import BLOCK, TILE

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.targets.weight_roles import RoledWeight
    from .recipes import Recipe

_ROUNDED = ("attention", "mlp", "lm_head")  # the roles of linears whose inputs are quantized as well


def scheme(precision: str, lowering: Lowering) -> Scheme:
    """Return the scheme of a quantized format. Raises ``ValueError`` if the lowering's backend does not support it."""
    kind = NUMBER_FORMATS[precision]
    has = kind.tensorrt if lowering.is_tensorrt else kind.onnxruntime
    if has is None:
        raise ValueError(f"{lowering.backend} does not support {precision}")
    return has.scheme


def scheme_of(precision: str, lowering: Lowering, weight: RoledWeight) -> Scheme:
    """Return the scheme of one weight: packed if both the lowering and the weight allow it."""
    is_stack = len(weight.shape) > 2  # its matrices are packed one by one, without padding
    fits = weight.shape[-1] % BLOCK == 0 and not (is_stack and weight.shape[-2] % TILE)
    kernels = kernels_of(precision)
    return kernels.packed if lowering.packs and fits and kernels else scheme(precision, lowering)


def stored_scheme(kind: str) -> Scheme:
    """Return the scheme of a matrix in GGUF blocks that this project's kernels read (``Q8_0``, ``Q4_0``, ``Q4_1``)."""
    taken = format_stored_as(kind)
    if taken is None:
        raise ValueError(f"no format reads {kind} as stored")
    return taken.takes[kind]


def serves_embedding(recipe: Recipe, lowering: Lowering) -> bool:
    """Return True if the embedding reads rows from the codes of a tied LM head, so that it is stored once.

    Not with TensorRT, which would dequantize the whole table before every lookup.
    """
    return not lowering.is_tensorrt and kernels_of(recipe.lm_head) is not None


def rounds_input(recipe: Recipe, role: str) -> bool:
    """Return True if inputs of weights with this role are quantized, where their type quantizes inputs at all."""
    return recipe.expert_activations != recipe.wide if role == "experts" else role in _ROUNDED
