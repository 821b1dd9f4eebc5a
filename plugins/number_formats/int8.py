"""INT8: 8-bit integers around zero, with inputs rounded to them as well."""

from __future__ import annotations

from .number_format import (
    CacheUse,
    IntegerKernels,
    NumberFormat,
    OnnxRuntimeSupport,
    PrecisionLimits,
    Scheme,
    TensorRTSupport,
)

INT8 = NumberFormat(
    "int8",
    "int8",
    8.25,
    "8-bit integers with calibrated inputs",
    PrecisionLimits(0.02, 0.05, 0.03),
    tensorrt=TensorRTSupport(Scheme("int8", "row", input="int8"), since=80, with_wide=True),
    onnxruntime=OnnxRuntimeSupport(
        # Its kernels read unsigned codes around a zero point; with larger blocks, the last row of an odd number of rows
        # is rounded differently.
        Scheme("uint8", block=64, smallest=16),
        IntegerKernels("8-bit integers", Scheme("int8", "row", packed="int8"), lm_head="int8", drafter="int8"),
        of_drafters=True,
    ),
    rounds_inputs=True,
    rounds_expert_inputs=True,
    takes={"Q8_0": Scheme("int8", block=32, packed="q8_0")},
    caches=CacheUse(("std", "cpu"), limits=PrecisionLimits(0.005, 0.01, 0.03)),
    rounding_seconds=1.7e-9,
)
