"""FP8: E4M3 codes with one scale per matrix, and inputs rounded with calibrated scales."""

from __future__ import annotations

from .number_format import CacheUse, NumberFormat, OnnxRuntimeSupport, PrecisionLimits, Scheme, TensorRTSupport

_SCHEME = Scheme("float8_e4m3fn", input="float8_e4m3fn")

FP8 = NumberFormat(
    "fp8",
    "float8_e4m3fn",
    8,
    "E4M3 with calibrated inputs",
    PrecisionLimits(0.01, 0.05, 0.03),
    tensorrt=TensorRTSupport(_SCHEME, since=89, expert_layer=True),  # FP8 is only multiplied with FP8
    onnxruntime=OnnxRuntimeSupport(_SCHEME, of_drafters=True),
    rounds_inputs=True,
    rounds_expert_inputs=True,
    takes={"F8_E4M3": _SCHEME},
    caches=CacheUse(("tensorrt", "tensorrt-sm100"), calibrated=True),
    instead=("int8",),
    rounding_seconds=1.9e-9,
    elsewhere=True,
)
