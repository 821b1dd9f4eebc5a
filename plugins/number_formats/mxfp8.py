"""MXFP8: E4M3 codes in blocks of 32 that share a power of two, inputs as well (OCP Microscaling Formats 1.0)."""

from __future__ import annotations

from .number_format import NumberFormat, OnnxRuntimeSupport, PrecisionLimits, Scheme, TensorRTSupport

_SCHEME = Scheme("float8_e4m3fn", block=32, input="float8_e4m3fn", powers=True)

MXFP8 = NumberFormat(
    "mxfp8",
    "float8_e4m3fn",
    8.25,
    "E4M3 in blocks of 32 with a power-of-two scale each, inputs included",
    PrecisionLimits(0.01, 0.05, 0.03),
    # TensorRT-RTX 1.7 has no such kernels for sm_120 and sm_121, although their tensor cores support it: it dequantizes
    # the weights before every matmul.
    tensorrt=TensorRTSupport(_SCHEME, only=(100, 103, 110)),
    onnxruntime=OnnxRuntimeSupport(_SCHEME),
    rounds_inputs=True,
    instead=("fp8", "int8"),
    rounding_seconds=3.3e-9,
    elsewhere=True,
)
