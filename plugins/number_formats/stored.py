"""The format of matrices that keep the blocks of their file, of any type."""

from __future__ import annotations

from .number_format import IntegerKernels, NumberFormat, OnnxRuntimeSupport, PrecisionLimits, Scheme, TensorRTSupport

# The type of the blocks is known from the file; until then, the largest one is assumed.
_LARGEST = Scheme("int8", block=32, packed="q8_0", smallest=32)

STORED = NumberFormat(
    "stored",
    "int8",
    8.5,
    "the blocks of a GGUF file, unchanged",
    PrecisionLimits(0.02, 0.03, 0.03),
    onnxruntime=OnnxRuntimeSupport(
        _LARGEST,
        IntegerKernels(
            "the blocks of the GGUF file",
            _LARGEST,
            lm_head="stored",
            drafter="int8",  # a head has no blocks of its own
            embedding="stored",
        ),
    ),
    # Routed experts only: `--precision` does not name it, a checkpoint brings it.
    tensorrt=TensorRTSupport(Scheme("int8", block=32, powers=True, blocks="mxfp4", smallest=32)),
    as_stored=True,
)
