"""This machine's CPU as the device of an estimate, from what ``cpu_probe`` measured."""

from __future__ import annotations

from .cpu_probe import CpuSpeed
from .pass_work import PassWork
from .round_estimate import Device, PassTime

# Seconds of a pass outside the fused layers: ONNX Runtime's small nodes, and Python between passes. Measured with
# `benchmarks/profile_round.py --requests 1` on two engines: 0.1 to 0.5 ms.
_HOST_SECONDS = 0.3e-3


def cpu_device(speed: CpuSpeed) -> Device:
    """Return the device with these measured rates.

    A pass reads its weights once, at the rate of one column, and computes further columns one after another; keys and
    values are read at the rate of memory, or of the cache that holds them. The floor reads all bytes at that rate.
    """

    def seconds(work: PassWork) -> PassTime:
        others = work.total_bytes - work.weight_bytes
        more = max(work.total_operations - work.first_operations, 0.0)
        expected = work.weight_bytes / speed.weight_rate + others / speed.read_rate + more / speed.operation_rate
        return PassTime(work.total_bytes / speed.read_rate, expected, expected)

    source = (
        f"{speed.weight_rate / 1e9:.1f} GB/s of weights, {speed.operation_rate / 1e9:,.0f} G operations/s and "
        f"{speed.read_rate / 1e9:.1f} GB/s read, measured here on {speed.threads} threads; "
        f"{_HOST_SECONDS * 1e3:.1f} ms a pass for the host (docs/performance.md)"
    )
    return Device("this machine's CPU", seconds, (source,), _HOST_SECONDS)
