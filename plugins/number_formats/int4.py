"""INT4: 4-bit integers in blocks, multiplied with unquantized inputs unless a CPU kernel rounds these at run time."""

from __future__ import annotations

from .number_format import (
    AFFINE,
    IntegerKernels,
    NumberFormat,
    OnnxRuntimeSupport,
    PrecisionLimits,
    Scheme,
    TensorRTSupport,
)

_PACKED = Scheme("uint4", block=32, packed=AFFINE, smallest=16)

INT4 = NumberFormat(
    "int4",
    "int4",
    4.5,
    "4-bit integers in blocks, dequantized for matmuls",
    PrecisionLimits(0.05, 0.15, 0.05),
    # TensorRT fuses the unpacking into the matmul only if a row has several blocks.
    tensorrt=TensorRTSupport(Scheme("int4", block=128, several=True), since=80, with_wide=True),
    onnxruntime=OnnxRuntimeSupport(
        Scheme("uint4", block=32, smallest=16),  # its kernels read unsigned codes around a zero point
        IntegerKernels(
            "4-bit integers",
            _PACKED,
            lm_head="int8",  # its rounding errors affect the logits directly
            drafter="int8",  # four bits would save little memory and lower the acceptance rate
        ),
        of_drafters=True,
    ),
    takes={"Q4_0": Scheme("uint4", block=32, packed="q4_0", smallest=16), "Q4_1": _PACKED},
    rounding_seconds=8.6e-9,
)
