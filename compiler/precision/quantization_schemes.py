"""Quantization scheme of each weight, from its format's record for the backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...plugins.number_formats import NUMBER_FORMATS, Scheme, keeps_blocks, kernels_of
from ...plugins.ops.quantized_linear.packed_weights import BLOCK, FORMATS, TILE

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.targets.weight_roles import RoledWeight
    from .recipes import Recipe

EXPERTS = "experts"
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
    kernels = kernels_of(precision)
    return kernels.packed if kernels and is_packable(lowering, weight) else scheme(precision, lowering)


def is_packable(lowering: Lowering, weight: RoledWeight) -> bool:
    """Return True if this project's kernels can multiply with a weight in some packed format."""
    is_stack = len(weight.shape) > 2  # its matrices are packed one by one, without padding
    return lowering.packs and weight.shape[-1] % BLOCK == 0 and not (is_stack and weight.shape[-2] % TILE)


def may_keep_blocks(precision: str, lowering: Lowering, weight: RoledWeight) -> bool:
    """Return True if a lowering may use a weight in the blocks that its checkpoint stores."""
    if lowering.is_tensorrt:
        return keeps_blocks(precision) and weight.role == EXPERTS and bool(lowering.expert_blocks)
    return is_packable(lowering, weight)


def scheme_of_kept(precision: str, lowering: Lowering, kind: str) -> Scheme | None:
    """Return the scheme of a weight that ``may_keep_blocks``, of blocks of type ``kind``; None if it cannot."""
    if lowering.is_tensorrt:
        return scheme(precision, lowering) if kind in lowering.expert_blocks else None
    return scheme_of_blocks(precision, kind)


def scheme_of_blocks(precision: str, kind: str) -> Scheme | None:
    """Return the scheme of a matrix that a format takes in its GGUF blocks, of type ``kind`` (``Q4_K``).

    None if it does not take them. A format that keeps all weights as stored takes every type with a packed format.
    """
    number_format, packed = NUMBER_FORMATS[precision], kind.lower()
    if not number_format.as_stored or number_format.kernels is None:
        return number_format.takes.get(kind)
    return replace(number_format.kernels.packed, packed=packed) if packed in FORMATS else None


def serves_embedding(recipe: Recipe, lowering: Lowering) -> bool:
    """Return True if the embedding reads rows from the codes of a tied LM head, so that it is stored once.

    Not with TensorRT, which would dequantize the whole table before every lookup.
    """
    return not lowering.is_tensorrt and kernels_of(recipe.lm_head) is not None


def rounds_input(recipe: Recipe, role: str) -> bool:
    """Return True if inputs of weights with this role are quantized, where their type quantizes inputs at all."""
    return recipe.expert_activations != recipe.wide if role == EXPERTS else role in _ROUNDED
