"""The devices that speed is estimated for: known GPUs by their datasheets, and this machine's CPU as measured."""

from __future__ import annotations

from ....plugins.number_formats import NUMBER_FORMATS
from ...hardware.cpu_probe import CpuSpeed
from ...hardware.gpu_speeds import BANDWIDTH_SHARE, BLOCKS_SHARE, KERNEL_SECONDS, gpu_speed
from ...hardware.gpus import find_gpu
from .pass_work import EXPERTS, PassWork
from .round_estimate import PassSeconds, TimedDevice

_NARROW = 8  # bits
# Seconds of a pass outside the fused layers: ONNX Runtime's small nodes, and Python between passes. Measured with
# `benchmarks/profile_round.py --requests 1` on two engines: 0.1 to 0.5 ms.
_HOST_SECONDS = 0.3e-3


def gpu_device(name: str) -> TimedDevice:
    """Return the device of a GPU. Raises ``UsageError`` for an unknown one.

    At the floor, a pass takes the time to move its bytes or that of its operations at the datasheet's rates, whichever
    is longer. Expected is a share of the bandwidth, another one for experts that this project's kernels multiply, and a
    delay before each kernel.
    """
    speed = gpu_speed(name)

    def in_blocks(kind: str) -> bool:  # which this project's kernels multiply
        return kind not in NUMBER_FORMATS

    def rate(kind: str) -> float:
        if in_blocks(kind):
            return speed.fp32_rate
        narrow = NUMBER_FORMATS[kind].number_type.bits <= _NARROW
        return speed.fp8_rate if narrow and speed.fp8_rate else speed.bf16_rate

    def seconds(work: PassWork) -> PassSeconds:
        moving = work.total_bytes / speed.bandwidth
        computing = sum(count / rate(kind) for kind, count in work.operations.items())
        blocks = work.bytes.get(EXPERTS, 0.0) / speed.bandwidth if any(map(in_blocks, work.operations)) else 0.0
        best, worst = (
            max((moving - blocks) / share + blocks / blocks_share, computing) + work.kernels * delay
            for share, blocks_share, delay in (
                (BANDWIDTH_SHARE.best, BLOCKS_SHARE.best, KERNEL_SECONDS.best),
                (BANDWIDTH_SHARE.worst, BLOCKS_SHARE.worst, KERNEL_SECONDS.worst),
            )
        )
        return PassSeconds(max(moving, computing), best, worst)

    sources = (speed.source, KERNEL_SECONDS.source, BANDWIDTH_SHARE.source, BLOCKS_SHARE.source)
    return TimedDevice(find_gpu(name).name, seconds, sources)


def cpu_device(speed: CpuSpeed) -> TimedDevice:
    """Return the device with these measured rates.

    A pass reads its weights once, at the rate of one column, and computes further columns one after another; keys and
    values are read at the rate of memory, or of the cache that holds them. The floor reads all bytes at that rate.
    """

    def seconds(work: PassWork) -> PassSeconds:
        others = work.total_bytes - work.weight_bytes
        more = max(work.total_operations - work.first_operations, 0.0)
        expected = work.weight_bytes / speed.weight_rate + others / speed.read_rate + more / speed.operation_rate
        return PassSeconds(work.total_bytes / speed.read_rate, expected, expected)

    source = (
        f"{speed.weight_rate / 1e9:.1f} GB/s of weights, {speed.operation_rate / 1e9:,.0f} G operations/s and "
        f"{speed.read_rate / 1e9:.1f} GB/s read, measured here on {speed.threads} threads; "
        f"{_HOST_SECONDS * 1e3:.1f} ms a pass for the host (docs/performance.md)"
    )
    return TimedDevice("this machine's CPU", seconds, (source,), _HOST_SECONDS)
