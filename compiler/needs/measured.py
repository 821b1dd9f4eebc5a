"""What steps were measured to take: the rates and shares that forecasts and refusals are made of, and nothing else.

None is a bound. Where one changes, it is changed here, and the command behind it says so again.
"""

from __future__ import annotations

# Seconds for a number on one core, from a checkpoint in BF16 that is in the page cache, and for codes of a matrix that
# lies in memory: `benchmarks/rounding.py`.
READ = 0.6e-9
ROUND = {"fp8": 6.6e-9, "int8": 6.8e-9, "mxfp8": 8.4e-9, "int4": 14.8e-9}
FIT = 50e-9  # a scale and a least value for each block

# `make bench-export` writes 120 MB/s in FP16 and 187 MB/s in FP32 (docs/performance.md); below both, on the safe side.
WRITTEN_BYTES_PER_SECOND = 80e6

# The process that builds a plan with TensorRT-RTX 1.7: its peak in one piece for dense layers, by the bytes of the
# weights, mapped pages of the graph's file included. Of routed experts it was 2.2 (`make bench-aot`).
BUILDER_PEAK = 3.07
# What of it is not mapped and cannot be given up: with this share of the weights a build is killed
# (`tools/least_builder_memory.py`).
BUILDER_LEAST = 0.95
# Bytes of a plan by those of its weights, at least: 0.98 with `make bench-aot`.
PLAN_LEAST = 0.95
# Seconds of TensorRT-RTX for a layer and for a byte of weights: `make bench-aot`.
BUILD_LAYER = 1.05
BUILD_BYTE = 3.6e-9
