"""The record of a number format: what ``--precision`` names, with everything that the other parts need to know of it.

Parser, recipes, rewrites, lowerings, reports and limits read records; none of them tests a name. The records are plain
data, of the standard library alone, so that ``--help`` costs no import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..number_types import NumberType

Group = Literal["tensor", "row"]  # of stacked experts: each of them, each of their rows
AFFINE = "q4_1"  # the packed format whose blocks have a least value beside their scale


@dataclass(frozen=True)
class Scheme:
    """How numbers are stored as codes: ``block`` columns share a scale, or with 0 a ``group`` does.

    ``codes`` is the element type as ml_dtypes calls it; ``largest`` the largest code in use, 0 for the type's own.
    ``input`` is the type that inputs of linears are rounded to. ``powers``: the scales are powers of two, also those of
    the inputs, which are then found at run time. A matrix that is ``packed`` is in that format of our kernels, which
    round what they multiply with to int8. Where no block of ``smallest`` columns or more divides a row, the matrix
    stays wide. ``several``: a row of a single block is cut into smaller ones.
    """

    codes: str
    group: Group = "tensor"
    block: int = 0
    input: str | None = None
    powers: bool = False
    packed: str = ""
    smallest: int = 8  # below, scales take more room than they save
    several: bool = False
    largest: int = 0

    def block_for(self, columns: int) -> int:
        """The largest power of two that divides the columns and is no larger than ``block``; 0 if there is none.

        MX formats fix theirs, and rows end with zeros where they end within one.
        """
        block = self.block
        if self.powers:
            return block
        while block and (columns % block or (self.several and block == columns)):
            block //= 2
        return block if block >= self.smallest else 0

    @property
    def of_block(self) -> int:
        """How many numbers are stored for each block beside its codes."""
        return 2 if self.packed == AFFINE else 1


@dataclass(frozen=True)
class PrecisionLimits:
    """The most that a precision may cost in accuracy.

    A relative increase of perplexity, a mean divergence of the logits in nats, a relative loss of acceptance length.
    Perplexity can fall by chance while a model changes; the divergence of the logits cannot, so it has a limit as well.
    """

    perplexity_increase: float
    kl_mean: float
    acceptance_drop: float


@dataclass(frozen=True)
class OnTensorRT:
    """How TensorRT stores and multiplies a format.

    It has arithmetic, or kernels, for it on GPUs from SM ``since`` on, or on those of ``only``. ``expert_layer``: its
    own layer of routed experts multiplies in it. ``with_wide``: it multiplies such weights with wide inputs, as those
    of drafters are.
    """

    scheme: Scheme
    since: int = 0
    only: tuple[int, ...] = ()
    expert_layer: bool = False
    with_wide: bool = False

    def runs_on(self, sm: int) -> bool:
        """Whether TensorRT multiplies in the format on a GPU of ``sm`` (``120``)."""
        return sm in self.only if self.only else sm >= self.since


@dataclass(frozen=True)
class IntegerKernels:
    """How kernels on a CPU multiply a format: codes as stored, with inputs that they round to int8 themselves.

    ``codes`` says in words what they read. ``packed`` is the scheme of matrices whose columns are whole blocks of 32,
    for our kernels; ONNX Runtime's have the others, and routed experts. ``lm_head`` and ``drafter`` are the formats of
    those matrices in the recipe of this format.
    """

    codes: str
    packed: Scheme
    lm_head: str
    drafter: str


@dataclass(frozen=True)
class OnOnnxRuntime:
    """How ONNX Runtime stores a format. Without ``kernels`` it is emulated: dequantized, and multiplied in float32.

    ``of_drafters``: the matrices of a drafter can be stored so.
    """

    scheme: Scheme
    kernels: IntegerKernels | None = None
    of_drafters: bool = False


@dataclass(frozen=True)
class CacheUse:
    """The use of a format for keys and values, by the ``lowerings`` whose attention reads them so.

    ``calibrated``: they are codes of one measured scale a layer, of the target alone. ``limits`` are those of a build
    whose caches alone are in the format; None for the recipe's.
    """

    lowerings: tuple[str, ...]
    calibrated: bool = False
    limits: PrecisionLimits | None = None


@dataclass(frozen=True)
class NumberFormat:
    """One format of numbers, by the ``name`` that ``--precision`` and the flags beside it take.

    ``number`` is the type of a stored number as NumPy or ml_dtypes calls it; ``bits`` are those of a number of a matrix
    on average, scales included; ``says`` is how its matrices are multiplied, for people. A format without ``tensorrt``
    and ``onnxruntime`` is wide: every number of a model can be in it. A quantized one is available where it has a
    record, for the matrices of a model.

    ``rounds_inputs``: the name stands for both factors of a product, so that one with a wide input does not count as
    multiplied in it; ``rounds_expert_inputs`` the same of routed experts. ``takes``: the types of stored weights (of
    GGUF, or of safetensors) whose codes are taken as they are, and their scheme. ``instead`` are the formats to offer
    where a GPU lacks this one, nearest first. ``rounding_seconds``: for the codes and scale of one number on one core
    (`make bench-rounding`). ``elsewhere``: vLLM's and TensorRT-LLM's name of it is the same.
    """

    name: str
    number: str
    bits: float
    says: str
    limits: PrecisionLimits
    tensorrt: OnTensorRT | None = None
    onnxruntime: OnOnnxRuntime | None = None
    rounds_inputs: bool = False
    rounds_expert_inputs: bool = False
    takes: Mapping[str, Scheme] = field(default_factory=dict)
    caches: CacheUse | None = None
    instead: tuple[str, ...] = ()
    rounding_seconds: float = 0.0
    elsewhere: bool = False

    @property
    def title(self) -> str:
        """The name, for people."""
        return self.name.upper()

    @property
    def is_quantized(self) -> bool:
        """Whether it is for matrices, as codes and scales, and not for whole models."""
        return self.tensorrt is not None or self.onnxruntime is not None

    @property
    def is_emulated(self) -> bool:
        """Whether ONNX Runtime has no arithmetic for it, and multiplies rounded numbers in float32."""
        return self.is_quantized and self.kernels is None

    @property
    def kernels(self) -> IntegerKernels | None:
        """The kernels that multiply it on a CPU; None where there are none."""
        return self.onnxruntime.kernels if self.onnxruntime else None

    @property
    def number_type(self) -> NumberType:
        """The type of a stored number."""
        from ..number_types import BY_NUMPY

        return BY_NUMPY[self.number]

    def is_calibrated(self, *, tensorrt: bool) -> bool:
        """Whether TensorRT, or ONNX Runtime, rounds inputs of its products with scales that were measured before."""
        on = self.tensorrt if tensorrt else self.onnxruntime
        return on is not None and on.scheme.input is not None and not on.scheme.powers

    def drafts(self, *, tensorrt: bool) -> bool:
        """Whether the matrices of a drafter, whose inputs stay wide, can be in it on TensorRT, or on ONNX Runtime."""
        if tensorrt:
            return self.tensorrt is not None and self.tensorrt.with_wide
        return self.onnxruntime is not None and self.onnxruntime.of_drafters
