"""What an engine of a known pair takes on disk and on a GPU, by arithmetic on its registered size alone."""

from __future__ import annotations

from dataclasses import dataclass

from ..checkpoints.known_pairs import Local, Pair
from ..hardware.gpus import GPUS
from .record import fit

# Bits of a number in the matrices of layers, scales included; what is not in layers stays wide.
_BITS = {"fp32": 32.0, "bf16": 16.0, "fp8": 8.0, "mxfp8": 8.25, "int8": 8.25, "int4": 4.5}
_COPIES = 3  # the step that writes weights, the step that makes the plan, the engine
_COPIES_ON_CPU = 2  # an engine of ONNX Runtime has no plan


@dataclass(frozen=True)
class SizeIn:
    """The size in one precision: bytes of the target's weights, of the disk that a build takes, and who has room."""

    precision: str
    weight_bytes: int
    disk_bytes: int
    gpus: tuple[str, ...]


def download_bytes(pair: Pair) -> int:
    """Bytes of the target to be fetched; none of a bundled one."""
    return 0 if isinstance(pair.target, Local) else pair.size.published_bytes


def sizes(pair: Pair) -> tuple[SizeIn, ...]:
    """The size of a pair's target in every precision, the drafter left out; ``fp32`` is for ONNX Runtime alone."""
    return tuple(_in(pair, precision) for precision in _BITS)


def _in(pair: Pair, precision: str) -> SizeIn:
    wide = _BITS["fp32" if precision == "fp32" else "bf16"]
    size = pair.size
    weights = int(size.in_layers * _BITS[precision] + (size.parameters - size.in_layers) * wide) // 8
    copies = _COPIES_ON_CPU if precision == "fp32" else _COPIES
    held = () if precision == "fp32" else (gpu for gpu in GPUS.values() if fit(gpu, [precision], weights, 1).fits)
    return SizeIn(precision, weights, download_bytes(pair) + copies * weights, tuple(gpu.name for gpu in held))
