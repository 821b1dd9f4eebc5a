"""The unquantized formats that a whole model can have: FP32, FP16 and BF16."""

from __future__ import annotations

from .number_format import CacheUse, NumberFormat, PrecisionLimits

_CPU_ATTENTION = ("std", "cpu")  # their attention reads caches that are narrower than its compute type

FP32 = NumberFormat("fp32", "float32", 32, "all weights and the KV cache in fp32", PrecisionLimits(0.001, 0.001, 0.03))
FP16 = NumberFormat(
    "fp16",
    "float16",
    16,
    "all weights and the KV cache in fp16",
    PrecisionLimits(0.005, 0.01, 0.03),
    caches=CacheUse(_CPU_ATTENTION, default_of=("cpu",)),
)
BF16 = NumberFormat(
    "bf16",
    "bfloat16",
    16,
    "all weights and the KV cache in bf16",
    PrecisionLimits(0.005, 0.02, 0.03),
)
