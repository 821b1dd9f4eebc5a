"""Speeds of the known GPUs, from their datasheets, and the share that decoding attains."""

from __future__ import annotations

from dataclasses import dataclass

from .gpus import find_gpu

_TERA = 10**12


@dataclass(frozen=True)
class GpuSpeed:
    """The peak speed of a GPU by ``source``: bytes per second, and dense operations per second of its tensor cores.

    A multiplication and an addition are two operations. Datasheets name the rates with sparsity, which are twice as
    high. ``fp8_rate`` is 0 if it has no FP8 arithmetic. ``fp32_rate`` is that of its other cores, which the kernels of
    this project compute with.
    """

    bandwidth: float
    bf16_rate: float
    fp8_rate: float
    fp32_rate: float
    source: str


@dataclass(frozen=True)
class AttainedRate:
    """A rate that kernels attain in a CUDA graph, in the ``best`` and the ``worst`` case."""

    best: float
    worst: float
    source: str


_PAGE = "hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles, H100"
# Seconds from a kernel to the next one in a CUDA graph.
KERNEL_SECONDS = AttainedRate(1.3e-6, 2.2e-6, f"1.3 us per kernel in a CUDA graph ({_PAGE}) to 2.2 us (assumed)")
# Share of the bandwidth while weights are read.
BANDWIDTH_SHARE = AttainedRate(0.78, 0.6, "78% of the bandwidth (one fused kernel, the same page) to 60% (assumed)")
# The same for the kernels of this project that multiply experts in blocks: benchmarks/kernels.py, windows of 1 and 5
# tokens with the sizes of GPT-OSS-120B.
BLOCKS_SHARE = AttainedRate(0.23, 0.17, "23% to 17% of it while experts in MXFP4 are read (measured on an H200)")

_HOPPER = 989 * _TERA, 1979 * _TERA, 67 * _TERA
_BLACKWELL = 2250 * _TERA, 4500 * _TERA, 75 * _TERA
GPU_SPEEDS = {
    "b200": GpuSpeed(8e12, *_BLACKWELL, "8 TB/s (nvidia.com/en-us/data-center/dgx-b200: 64 TB/s in 8 GPUs)"),
    "b300": GpuSpeed(8e12, *_BLACKWELL, "8 TB/s (nvidia.com/en-us/data-center/dgx-b300)"),
    "gb200": GpuSpeed(
        8e12,
        2500 * _TERA,
        5000 * _TERA,
        80 * _TERA,
        "8 TB/s (nvidia.com/en-us/data-center/gb200-nvl72, 16 TB/s in 2 GPUs)",
    ),
    "h200": GpuSpeed(4.8e12, *_HOPPER, "4.8 TB/s (nvidia.com/en-us/data-center/h200, SXM)"),
    "h100": GpuSpeed(3.35e12, *_HOPPER, "3.35 TB/s (nvidia.com/en-us/data-center/h100, SXM)"),
    "a100-80gb": GpuSpeed(
        2.039e12, 312 * _TERA, 0, 19.5 * _TERA, "2,039 GB/s (nvidia.com/en-us/data-center/a100, SXM)"
    ),
    "l40s": GpuSpeed(864e9, 362 * _TERA, 733 * _TERA, 91.6 * _TERA, "864 GB/s (nvidia.com/en-us/data-center/l40s)"),
    "rtx-4090": GpuSpeed(1008e9, 165 * _TERA, 330 * _TERA, 82.6 * _TERA, "1,008 GB/s (NVIDIA, Ada GPU architecture)"),
    "rtx-5090": GpuSpeed(
        1792e9, 209 * _TERA, 419 * _TERA, 104.8 * _TERA, "1,792 GB/s (NVIDIA, RTX Blackwell GPU architecture)"
    ),
    "rtx-pro-6000": GpuSpeed(
        1792e9, 500 * _TERA, 1000 * _TERA, 125 * _TERA, "1,792 GB/s (NVIDIA, RTX PRO 6000 Blackwell)"
    ),
}


def gpu_speed(name: str) -> GpuSpeed:
    """Return the speed of a GPU by name, in any spelling. Raises ``UsageError`` for an unknown one."""
    return GPU_SPEEDS[find_gpu(name).name]
