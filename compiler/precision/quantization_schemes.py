"""The scheme of each weight: its format's record says how a backend spells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins.number_formats import NUMBER_FORMATS, Scheme, format_stored_as, kernels_of
from ...plugins.ops.quantized_linear.packed_weights import BLOCK

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.targets.weight_roles import RoledWeight
    from .recipes import Recipe

_ROUNDED = ("attention", "mlp", "lm_head")  # the roles of linears whose inputs are rounded as well


def scheme(precision: str, lowering: Lowering) -> Scheme:
    """The scheme of a quantized format by name. Raises ``ValueError`` where the lowering's backend does not have it."""
    kind = NUMBER_FORMATS[precision]
    has = kind.tensorrt if lowering.is_tensorrt else kind.onnxruntime
    if has is None:
        raise ValueError(f"{lowering.backend} has no {precision}")
    return has.scheme


def scheme_of(precision: str, lowering: Lowering, weight: RoledWeight) -> Scheme:
    """The scheme of one weight: packed, where the lowering packs and the weight can be."""
    fits = len(weight.shape) == 2 and weight.shape[-1] % BLOCK == 0
    kernels = kernels_of(precision)
    return kernels.packed if lowering.packs and fits and kernels else scheme(precision, lowering)


def stored_scheme(kind: str) -> Scheme:
    """The scheme of a matrix that is stored in blocks of GGUF which our kernels read (``Q8_0``, ``Q4_0``, ``Q4_1``)."""
    taken = format_stored_as(kind)
    if taken is None:
        raise ValueError(f"no format takes {kind} as it is stored")
    return taken.takes[kind]


def serves_embedding(recipe: Recipe, lowering: Lowering) -> bool:
    """Whether rows are looked up in the codes of a head that is the embedding too, so that it is stored once.

    Not with TensorRT, which would write the table out wide before every lookup.
    """
    return not lowering.is_tensorrt and kernels_of(recipe.lm_head) is not None


def rounds_input(recipe: Recipe, role: str) -> bool:
    """Whether what weights of a role are multiplied with is rounded, where their type rounds inputs at all."""
    return recipe.expert_activations != recipe.wide if role == "experts" else role in _ROUNDED
