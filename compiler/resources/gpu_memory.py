"""The fit of engines and known models into GPU memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...plugins.number_formats import BF16, FP32, NumberFormat, quantized_formats, wide_formats
from ..checkpoints.known_pairs import Local, Pair
from ..hardware.gpus import GPUS, Gpu, why_unsupported

RESERVED_FOR = "other activations, workspaces, the driver and fragmentation"
RESERVE = 0.1  # of the memory

_COPIES = 3  # the step that writes weights, the step that makes the plan, the engine
_COPIES_ON_CPU = 2  # an engine of ONNX Runtime has no plan


@dataclass(frozen=True)
class Verdict:
    """The fit of weights, reserve, the largest tensors of a pass and the caches of ``slots`` slots into a GPU.

    ``most_slots`` is the number of slots that would fit; ``short_bytes`` the missing bytes for the requested slots, 0
    if they fit. ``refusal`` is the reason if the GPU cannot run the engine at any size, else empty.
    """

    gpu: Gpu
    reserve_bytes: int
    weight_bytes: int
    slot_bytes: int
    slots: int
    most_slots: int
    short_bytes: int
    refusal: str
    tensor_bytes: int = 0

    @property
    def fits(self) -> bool:
        """True if the requested slots fit and the GPU can run the engine."""
        return not self.short_bytes and not self.refusal


def fit(
    gpu: Gpu, types: Collection[str], weight_bytes: int, slot_bytes: int, slots: int = 1, tensor_bytes: int = 0
) -> Verdict:
    """Fit an engine with this many bytes of weights and bytes per slot, which computes in ``types``, into ``gpu``.

    ``tensor_bytes`` are those of the largest tensors of a pass.
    """
    reserve = int(gpu.memory_bytes * RESERVE)
    room = gpu.memory_bytes - reserve - weight_bytes - tensor_bytes
    refusal = "; ".join(
        f"{reason}: choose a precision without {kind}" for kind in types if (reason := why_unsupported(gpu.sm, kind))
    )
    max_slots, short = max(room // slot_bytes, 0), max(slots * slot_bytes - room, 0)
    return Verdict(gpu, reserve, weight_bytes, slot_bytes, slots, max_slots, short, refusal, tensor_bytes)


@dataclass(frozen=True)
class PrecisionSize:
    """The size in one precision: bytes of the target's weights, disk bytes of a build, and GPUs with enough memory."""

    precision: str
    weight_bytes: int
    disk_bytes: int
    gpus: tuple[str, ...]


def download_bytes(pair: Pair) -> int:
    """Return the bytes of the target to download; 0 for a bundled one."""
    return 0 if isinstance(pair.target, Local) else pair.size.published_bytes


def sizes(pair: Pair) -> tuple[PrecisionSize, ...]:
    """Return the size of a pair's target in every precision, without the drafter; ``fp32`` is for ONNX Runtime.

    A format that keeps the blocks of a file has the size of that file.
    """
    wide = {each.bits: each for each in wide_formats()}  # one for each size
    kinds = (*wide.values(), *(each for each in quantized_formats() if not each.as_stored))
    return tuple(_in(pair, kind) for kind in kinds)


def _in(pair: Pair, kind: NumberFormat) -> PrecisionSize:
    """Return the size in a format; weights outside the layers are not quantized."""
    size, on_cpu = pair.size, kind is FP32
    wide = FP32.bits if on_cpu else BF16.bits
    weights = int(size.in_layers * kind.bits + (size.parameters - size.in_layers) * wide) // 8
    copies = _COPIES_ON_CPU if on_cpu else _COPIES
    held = () if on_cpu else (gpu for gpu in GPUS.values() if fit(gpu, [kind.name], weights, 1).fits)
    return PrecisionSize(kind.name, weights, download_bytes(pair) + copies * weights, tuple(gpu.name for gpu in held))
