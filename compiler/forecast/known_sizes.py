"""What an engine of a known pair takes on disk and on a GPU, by arithmetic on its registered size alone."""

from __future__ import annotations

from dataclasses import dataclass

from ...plugins.number_formats import BF16, FP32, NumberFormat, quantized_formats, wide_formats
from ..checkpoints.known_pairs import Local, Pair
from ..hardware.gpus import GPUS
from .record import fit

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
    wide = {each.bits: each for each in wide_formats()}  # one for each size
    return tuple(_in(pair, kind) for kind in (*wide.values(), *quantized_formats()))


def _in(pair: Pair, kind: NumberFormat) -> SizeIn:
    """The size in a format: of the matrices of layers, and what is not in layers stays wide."""
    size, on_cpu = pair.size, kind is FP32
    wide = FP32.bits if on_cpu else BF16.bits
    weights = int(size.in_layers * kind.bits + (size.parameters - size.in_layers) * wide) // 8
    copies = _COPIES_ON_CPU if on_cpu else _COPIES
    held = () if on_cpu else (gpu for gpu in GPUS.values() if fit(gpu, [kind.name], weights, 1).fits)
    return SizeIn(kind.name, weights, download_bytes(pair) + copies * weights, tuple(gpu.name for gpu in held))
