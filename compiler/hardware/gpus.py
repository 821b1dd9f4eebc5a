"""GPUs by name: how much memory each has, which types it computes in, and what fits into it."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from ...plugins.errors import UsageError
from ..precision.legal import lacks

RESERVE = 0.1
RESERVED_FOR = "activations, workspaces, the driver and fragments"
_GB = 10**9


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``memory_bytes`` are those that ``source`` states, in GB of 10^9; nothing was measured."""

    name: str
    sm: int
    memory_bytes: int
    fp8: bool
    source: str


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("b200", 100, 180 * _GB, True, "NVIDIA, DGX B200: 1,440 GB in 8 GPUs"),
        Gpu("b300", 103, 288 * _GB, True, "NVIDIA, B300 SXM6: 288 GB"),
        Gpu("gb200", 100, 186 * _GB, True, "NVIDIA, GB200 superchip: 372 GB in 2 GPUs"),
        Gpu("h200", 90, 141 * _GB, True, "NVIDIA, H200: 141 GB"),
        Gpu("h100", 90, 80 * _GB, True, "NVIDIA, H100: 80 GB"),
        Gpu("a100-80gb", 80, 80 * _GB, False, "NVIDIA, A100: 80 GB"),
        Gpu("l40s", 89, 48 * _GB, True, "NVIDIA, L40S: 48 GB"),
        Gpu("rtx-4090", 89, 24 * _GB, True, "NVIDIA, GeForce RTX 4090: 24 GB"),
        Gpu("rtx-5090", 120, 32 * _GB, True, "NVIDIA, GeForce RTX 5090: 32 GB"),
        Gpu("rtx-pro-6000", 120, 96 * _GB, True, "NVIDIA, RTX PRO 6000 Blackwell: 96 GB"),
    )
}


@dataclass(frozen=True)
class Verdict:
    """Whether weights and the caches of ``slots`` slots fit beside the reserve.

    ``most_slots`` is how many would; ``short_bytes`` what is missing for those asked for, 0 when they fit. ``refusal``
    says why the GPU cannot run it whatever the size; it is empty otherwise.
    """

    gpu: Gpu
    reserve_bytes: int
    weight_bytes: int
    slot_bytes: int
    slots: int
    most_slots: int
    short_bytes: int
    refusal: str

    @property
    def fits(self) -> bool:
        """Whether the slots asked for fit, on a GPU that can run it."""
        return not self.short_bytes and not self.refusal


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, however it is spelt. Raises ``UsageError`` with those that come near."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    if key in GPUS:
        return GPUS[key]
    near = difflib.get_close_matches(key, GPUS, 3, cutoff=0.5)
    known = f"the known ones are: {', '.join(GPUS)}"
    raise UsageError(
        f"the GPU {name!r} is not known",
        why=f"did you mean {' or '.join(near)}? {known}" if near else known,
        fix="name one of those, or leave the GPU out and compare the bytes yourself",
    )


def fit(gpu: Gpu, types: Collection[str], weight_bytes: int, slot_bytes: int, slots: int = 1) -> Verdict:
    """What ``gpu`` holds of an engine with this many bytes of weights, and per slot, that computes with ``types``."""
    reserve = int(gpu.memory_bytes * RESERVE)
    room = gpu.memory_bytes - reserve - weight_bytes
    refusal = "; ".join(f"{reason}: plan it without {kind}" for kind in types if (reason := lacks(gpu.sm, kind)))
    return Verdict(
        gpu=gpu,
        reserve_bytes=reserve,
        weight_bytes=weight_bytes,
        slot_bytes=slot_bytes,
        slots=slots,
        most_slots=max(room // slot_bytes, 0),
        short_bytes=max(slots * slot_bytes - room, 0),
        refusal=refusal,
    )
