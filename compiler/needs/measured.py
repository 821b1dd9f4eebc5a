"""What steps were measured to take: the rates and shares that forecasts and refusals are made of, and nothing else.

None is a bound. Where one changes, it is changed here, and the command behind it says so again.
"""

from __future__ import annotations

# Seconds for a number on one processor, from a checkpoint in BF16 that is in the page cache: `make bench-rounding`.
# Several processors take less. For its codes and scales each number format has them (`plugins/number_formats`).
READ = 0.4e-9
FIT = 52e-9  # a scale and a least value for each block

# Additions and multiplications a second of one idle core with AVX-512 in a calibrated layer of Qwen3-Coder-30B,
# attention and observers included: 390 tokens a second of 56 million weights (`benchmarks/calibration.py`).
CALIBRATED_BY_A_CORE = 44e9

# `make bench-export` writes 120 MB/s in FP16 and 187 MB/s in FP32 (docs/performance.md); below both, on the safe side.
WRITTEN_BYTES_PER_SECOND = 80e6

# The process that builds a plan with TensorRT-RTX 1.7: its peak in one piece for dense layers, by the bytes of the
# weights, mapped pages of the graph's file included. Of routed experts it was 2.3 (`make bench-aot`).
BUILDER_PEAK = 3.07
# Mapped pages are given up when memory is short, the rest is not: in a control group of this share of the weights the
# first case of `make bench-aot` was killed, in one of 1.7 times it was built (docs/tensorrt.md has the command).
BUILDER_LEAST = 0.95
# Bytes of a plan by those of its weights, at least: 0.98 with `make bench-aot`.
PLAN_LEAST = 0.95
# Seconds of TensorRT-RTX for a layer and for a byte of weights: `make bench-aot`.
BUILD_LAYER = 1.05
BUILD_BYTE = 3.6e-9
