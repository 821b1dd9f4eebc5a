"""The record of a number format: the name that ``--precision`` takes, and everything other modules need to know.

Parser, recipes, rewrites, lowerings, reports and limits read records; none compares names. Records are plain data from
the standard library, so that ``--help`` imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..number_types import NumberType

Group = Literal["tensor", "row"]  # for stacked experts: one scale per expert, or per row
AFFINE = "q4_1"  # the packed format whose blocks store a minimum beside the scale


@dataclass(frozen=True)
class Scheme:
    """The storage of numbers as codes: ``block`` columns share a scale, or with 0 a ``group`` does.

    ``codes`` is the element type in ml_dtypes' naming; ``largest`` the largest code in use, 0 for the type's own
    maximum. ``input`` is the type that linear inputs are rounded to. ``powers``: scales are powers of two, also those
    of the inputs, which are then computed at run time. A ``packed`` matrix is in that format of the project's kernels,
    which round their inputs to int8. Stacks of routed experts in ``blocks`` are as a checkpoint stores them, for the
    ops that multiply those. A matrix stays unquantized if no block of at least ``smallest`` columns divides a row.
    ``several``: a row of a single block is split into smaller blocks.
    """

    codes: str
    group: Group = "tensor"
    block: int = 0
    input: str | None = None
    powers: bool = False
    packed: str = ""
    blocks: str = ""
    smallest: int = 8  # below this, scales cost more memory than codes save
    several: bool = False
    largest: int = 0

    def block_for(self, columns: int) -> int:
        """Return the largest power of two that divides the columns and is at most ``block``; 0 if there is none.

        MX formats have a fixed block; a row that ends within one is padded with zeros.
        """
        block = self.block
        if self.powers:
            return block
        while block and (columns % block or (self.several and block == columns)):
            block //= 2
        return block if block >= self.smallest else 0

    @property
    def of_block(self) -> int:
        """Return the number of values stored per block besides its codes."""
        return 2 if self.packed == AFFINE else 1


@dataclass(frozen=True)
class PrecisionLimits:
    """The largest accuracy loss that a precision may cause.

    Relative increase of perplexity, mean KL divergence of the logits in nats, relative loss of acceptance length.
    Perplexity can fall by chance even as a model changes; the divergence cannot, so it has a limit as well.
    """

    perplexity_increase: float
    kl_mean: float
    acceptance_drop: float


@dataclass(frozen=True)
class TensorRTSupport:
    """TensorRT's storage and matmul support for a format.

    Supported on GPUs from SM ``since`` on, or on those in ``only``. ``expert_layer``: its routed-expert layer computes
    in this format. ``with_wide``: it multiplies such weights with unquantized inputs, as drafters need.
    """

    scheme: Scheme
    since: int = 0
    only: tuple[int, ...] = ()
    expert_layer: bool = False
    with_wide: bool = False

    def runs_on(self, sm: int) -> bool:
        """Return True if TensorRT multiplies in the format on a GPU of ``sm`` (``120``)."""
        return sm in self.only if self.only else sm >= self.since


@dataclass(frozen=True)
class IntegerKernels:
    """The CPU kernels of a format: they multiply stored codes with inputs that they round to int8 themselves.

    ``codes`` describes the codes in words. ``packed`` is the scheme of matrices whose columns are whole blocks of 32,
    for the project's kernels; ONNX Runtime's handle the others. ``lm_head`` and ``drafter`` are the
    formats of those matrices in this format's recipe, and ``embedding`` that of an embedding which is not the lm_head
    (empty: unquantized).
    """

    codes: str
    packed: Scheme
    lm_head: str
    drafter: str
    embedding: str = ""


@dataclass(frozen=True)
class OnnxRuntimeSupport:
    """ONNX Runtime's storage of a format. Without ``kernels`` it is emulated: dequantized and multiplied in float32.

    ``of_drafters``: drafter matrices can be stored in it.
    """

    scheme: Scheme
    kernels: IntegerKernels | None = None
    of_drafters: bool = False


@dataclass(frozen=True)
class CacheUse:
    """The use of a format for keys and values, with the ``lowerings`` whose attention supports it.

    ``calibrated``: the target's caches hold codes with one measured scale per layer. ``limits`` apply to a build with
    only its caches in the format; None means the recipe's. ``default_of``: the lowerings whose models with integer
    weights use it by default.
    """

    lowerings: tuple[str, ...]
    calibrated: bool = False
    limits: PrecisionLimits | None = None
    default_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class NumberFormat:
    """A number format, identified by the ``name`` that ``--precision`` and related flags take.

    ``number`` is the element type in NumPy's or ml_dtypes' naming; ``bits`` the average bits per weight, scales
    included; ``says`` describes for people how its matrices are multiplied. A format without ``tensorrt`` and
    ``onnxruntime`` is unquantized: a whole model can be in it. A quantized format is available on the backends it has a
    record for, for the model's matrices.

    ``rounds_inputs``: the name covers both factors of a product, so a product with an unquantized input does not count
    as computed in it; ``rounds_expert_inputs`` is the same for routed experts. ``takes``: stored weight types (of GGUF
    or safetensors) whose codes are used unchanged, with their scheme. ``as_stored``: of a GGUF file, it takes every
    type of blocks that the project's CPU kernels read, quantizes nothing else, and so needs such a file; on TensorRT,
    it is the format of routed experts that the checkpoint stores in blocks that a lowering takes. ``instead``:
    formats to suggest if a GPU lacks this one, nearest first. ``rounding_seconds``: time on one core to compute the
    code and scale of one number (`make bench-rounding`). ``elsewhere``: vLLM and TensorRT-LLM use the same name.
    """

    name: str
    number: str
    bits: float
    says: str
    limits: PrecisionLimits
    tensorrt: TensorRTSupport | None = None
    onnxruntime: OnnxRuntimeSupport | None = None
    rounds_inputs: bool = False
    rounds_expert_inputs: bool = False
    takes: Mapping[str, Scheme] = field(default_factory=dict)
    as_stored: bool = False
    caches: CacheUse | None = None
    instead: tuple[str, ...] = ()
    rounding_seconds: float = 0.0
    elsewhere: bool = False

    @property
    def title(self) -> str:
        """The display name."""
        return self.name.upper()

    @property
    def is_quantized(self) -> bool:
        """True if the format is for matrices, as codes and scales, rather than for whole models."""
        return self.tensorrt is not None or self.onnxruntime is not None

    @property
    def is_emulated(self) -> bool:
        """True if ONNX Runtime has no arithmetic for it and multiplies rounded numbers in float32."""
        return self.is_quantized and self.kernels is None

    @property
    def kernels(self) -> IntegerKernels | None:
        """The CPU kernels that multiply it, or None."""
        return self.onnxruntime.kernels if self.onnxruntime else None

    @property
    def number_type(self) -> NumberType:
        """The element type."""
        from ..number_types import BY_NUMPY

        return BY_NUMPY[self.number]

    def is_calibrated(self, *, tensorrt: bool) -> bool:
        """Return True if TensorRT, or ONNX Runtime, rounds inputs of its matmuls with calibrated scales."""
        on = self.tensorrt if tensorrt else self.onnxruntime
        return on is not None and on.scheme.input is not None and not on.scheme.powers

    @property
    def is_fitted(self) -> bool:
        """True if the blocks for the project's CPU kernels are fitted to the inputs of calibration samples."""
        return self.kernels is not None and self.kernels.packed.packed == AFFINE

    def drafts(self, *, tensorrt: bool) -> bool:
        """Return True if TensorRT, or ONNX Runtime, supports it for drafter matrices, whose inputs stay unquantized."""
        if tensorrt:
            return self.tensorrt is not None and self.tensorrt.with_wide
        return self.onnxruntime is not None and self.onnxruntime.of_drafters
