"""A known GPU as the device of an estimate: its datasheet, and what small kernels attain of it."""

from __future__ import annotations

from ....plugins.number_formats import NUMBER_FORMATS
from ...hardware.gpu_speeds import BANDWIDTH_SHARE, KERNEL_SECONDS, gpu_speed
from ...hardware.gpus import find_gpu
from .pass_work import PassWork
from .round_estimate import Device, PassTime

_NARROW = 8  # bits


def gpu_device(name: str) -> Device:
    """Return the device of a GPU. Raises ``UsageError`` for an unknown one.

    At the floor, a pass takes the time to move its bytes or that of its operations at the datasheet's rates, whichever
    is longer. Expected is a share of the bandwidth, and a delay before each kernel.
    """
    speed = gpu_speed(name)

    def rate(kind: str) -> float:
        narrow = kind in NUMBER_FORMATS and NUMBER_FORMATS[kind].number_type.bits <= _NARROW
        return speed.fp8_rate if narrow and speed.fp8_rate else speed.bf16_rate

    def seconds(work: PassWork) -> PassTime:
        moving = work.total_bytes / speed.bandwidth
        computing = sum(count / rate(kind) for kind, count in work.operations.items())
        best, worst = (
            max(moving / share, computing) + work.kernels * delay
            for share, delay in (
                (BANDWIDTH_SHARE.best, KERNEL_SECONDS.best),
                (BANDWIDTH_SHARE.worst, KERNEL_SECONDS.worst),
            )
        )
        return PassTime(max(moving, computing), best, worst)

    return Device(find_gpu(name).name, seconds, (speed.source, KERNEL_SECONDS.source, BANDWIDTH_SHARE.source))
