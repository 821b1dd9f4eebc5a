"""How each quantized type is spelled for a backend: codes, how many numbers share a scale, how inputs are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...graphs.quantization.quantized_weight import MIDDLE, Codes
from ...plugins.number_types import MX_BLOCK
from ...plugins.ops.quantized_linear.packed_weights import BLOCK
from .recipes import INTEGERS

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.targets.weight_roles import RoledWeight
    from .recipes import Recipe

Group = Literal["tensor", "row"]  # of stacked experts: each of them, each of their rows
_ROUNDED = ("attention", "mlp", "lm_head")  # the roles of linears whose inputs are rounded as well
AFFINE = "q4_1"  # the packed format whose blocks have a least value beside their scale
SMALLEST_BLOCK = 8  # below, scales take more room than they save
_SMALLEST_READ = 16  # by ONNX Runtime's kernels for integer weights


@dataclass(frozen=True)
class Scheme:
    """``block`` columns share a scale, or with 0 a ``group`` does. ``input``: what inputs of linears are rounded to.

    ``powers`` has scales that are powers of two, also those of the inputs, which are then found at run time. A matrix
    that is ``packed`` is in that format of our kernels, which round what they multiply with to int8.
    """

    codes: Codes
    group: Group = "tensor"
    block: int = 0
    input: Codes | None = None
    powers: bool = False
    packed: str = ""

    def block_for(self, columns: int) -> int:
        """The largest power of two that divides the columns and is no larger than ``block``; 0 if there is none.

        MX formats fix theirs, and rows end with zeros where they end within one. TensorRT unpacks 4-bit integers inside
        of the product only where a row has several.
        """
        block = self.block
        if self.powers:
            return block
        while block and (columns % block or (self.codes == "int4" and block == columns)):
            block //= 2
        return block if block >= self.smallest_block else 0

    @property
    def of_block(self) -> int:
        """How many numbers are stored for each block beside its codes."""
        return 2 if self.packed == AFFINE else 1

    @property
    def smallest_block(self) -> int:
        """The smallest block for a width that no larger one divides."""
        return _SMALLEST_READ if self.codes in MIDDLE else SMALLEST_BLOCK


_FP8 = Scheme("float8_e4m3fn", input="float8_e4m3fn")
_MXFP8 = Scheme("float8_e4m3fn", block=MX_BLOCK, input="float8_e4m3fn", powers=True)

# TensorRT wants signed codes around zero; ONNX Runtime's kernels read unsigned ones around their middle.
_TENSORRT = {
    "fp8": _FP8,
    "mxfp8": _MXFP8,
    "int8": Scheme("int8", "row", input="int8"),
    "int4": Scheme("int4", block=128),
}
_ORT = {
    "fp8": _FP8,
    "mxfp8": _MXFP8,
    "int8": Scheme("uint8", block=64),  # with larger ones the last of an odd number of rows is rounded otherwise
    "int4": Scheme("uint4", block=32),
}
# For matrices whose columns are whole blocks of 32; ONNX Runtime's kernels have the others, and routed experts.
_PACKED = {
    "int8": Scheme("int8", "row", packed="int8"),
    "int4": Scheme("uint4", block=32, packed=AFFINE),
}


def scheme(precision: str, lowering: Lowering) -> Scheme:
    """The scheme of a quantized type by name (``fp8 mxfp8 int8 int4``)."""
    return (_TENSORRT if lowering.is_tensorrt else _ORT)[precision]


def scheme_of(precision: str, lowering: Lowering, weight: RoledWeight) -> Scheme:
    """The scheme of one weight: packed, where the lowering packs and the weight can be."""
    fits = len(weight.shape) == 2 and weight.shape[-1] % BLOCK == 0
    if lowering.packs and fits and precision in _PACKED:
        return _PACKED[precision]
    return scheme(precision, lowering)


def stored_scheme(kind: str) -> Scheme:
    """The scheme of a matrix that is stored in blocks of GGUF which our kernels read (``Q8_0``, ``Q4_0``, ``Q4_1``)."""
    return Scheme("int8" if kind == "Q8_0" else "uint4", block=BLOCK, packed=kind.lower())


def serves_embedding(recipe: Recipe, lowering: Lowering) -> bool:
    """Whether rows are looked up in the codes of a head that is the embedding too, so that it is stored once.

    Not with TensorRT, which would write the table out wide before every lookup.
    """
    return not lowering.is_tensorrt and recipe.lm_head in INTEGERS


def rounds_input(recipe: Recipe, role: str) -> bool:
    """Whether what weights of a role are multiplied with is rounded, where their type rounds inputs at all."""
    return recipe.expert_activations != recipe.wide if role == "experts" else role in _ROUNDED
