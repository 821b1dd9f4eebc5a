"""Whether this machine has the disk and the memory that a build takes, said before hours are spent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...plugins.errors import EnvironmentProblem
from ..console.printing import size
from ..hardware.memory import free_memory
from ..store.copy_file import nearest
from . import measured
from .builder_work import BuilderWork
from .disk import Disk

if TYPE_CHECKING:
    from .build_work import BuildWork, CalibrationWork  # which needs the packages that trace

HERE = "this machine"
DOWNLOAD = "disk for the download"
CACHE_FIX = "`peagle-compile cache prune --older-than 30d` frees what was not used for long, and so does other cleaning"
_CACHE = f"{CACHE_FIX}; or point PEAGLE_CACHE to a larger disk"
_OUT = "point --out to a larger disk"
_SCALES = "--scales takes ranges that were calibrated on a machine with more memory, and nothing is calibrated then"
_ELSEWHERE = "`peagle-compile export` here and `build --from` on a machine with more memory"


class TooLittleRoom(EnvironmentProblem):
    """The disk or the memory of this machine certainly does not hold what would be made (exit code 3)."""


@dataclass(frozen=True)
class Need:
    """One thing that a build takes: about ``bytes`` by ``basis``, and no less than ``least_bytes``, by ``least_basis``.

    What is taken with others is judged with them: ``before_bytes`` are theirs, of the same disk. ``instead`` is what
    can be done where it is too little.
    """

    name: str
    bytes: int
    least_bytes: int
    basis: str
    where: str
    free_bytes: float
    before_bytes: int = 0
    least_basis: str = ""
    instead: str = ""

    @property
    def is_short(self) -> bool:
        """Whether it certainly does not fit."""
        return self.least_bytes > 0 and self.before_bytes + self.least_bytes > self.free_bytes

    @property
    def is_tight(self) -> bool:
        """Whether it does not fit by what was seen, and may all the same."""
        return not self.is_short and self.before_bytes + self.bytes > self.free_bytes

    def said(self, *, least: bool) -> str:
        """What it takes beside what is there: at ``least``, else about."""
        count, basis = (self.least_bytes, self.least_basis) if least else (self.bytes, "")
        before = f" after {size(self.before_bytes)} that go there first" if self.before_bytes else ""
        return (
            f"{self.name}: {size(count)} ({basis or self.basis}){before}, {size(self.free_bytes)} free ({self.where})"
        )


def needs_of(disk: Disk, work: BuildWork, download: Need | None = None) -> tuple[Need, ...]:
    """What a build, an export or an FP8 checkpoint takes. Steps that take memory do so one after the other."""
    return (*disk_needs(disk, download), *memory_needs(work))


def disk_needs(disk: Disk, download: Need | None = None) -> tuple[Need, ...]:
    """Kept steps and what comes of them, after a download; what goes to one disk must have room there together."""
    basis = "by the shapes of the weights"
    wanted = [download] if download else []
    wanted.append(Need("disk for kept steps", disk.to_keep_bytes, disk.to_keep_bytes, basis, disk.cache,
                       disk.cache_free_bytes, instead=_CACHE))  # fmt: skip
    wanted.append(Need("disk for what is made", disk.to_copy_bytes, disk.to_copy_bytes, basis, disk.out,
                       disk.out_free_bytes, instead=_OUT))  # fmt: skip
    taken: dict[int, int] = {}
    needs = []
    for need in wanted:
        device = nearest(Path(need.where).absolute()).stat().st_dev
        needs.append(replace(need, before_bytes=taken.get(device, 0)))
        taken[device] = taken.get(device, 0) + need.least_bytes
    return tuple(need for need in needs if need.bytes)


def memory_needs(work: BuildWork) -> tuple[Need, ...]:
    """What calibration and the builder take. What tracing and writing take is little, and told by a dry run."""
    calibration = calibration_needs(work.calibration) if work.calibration else ()
    return (*calibration, *(builder_needs(work.builder) if work.builder else ()))


def calibration_needs(work: CalibrationWork) -> tuple[Need, ...]:
    """What the largest layer takes while it is calibrated on the CPU."""
    if not work.is_here:
        return ()
    count = work.bytes
    return (Need("memory to calibrate", count, count, "a layer in FP32", HERE, free_memory(), instead=_SCALES),)


def builder_needs(builder: BuilderWork) -> tuple[Need, ...]:
    """What the process that builds a plan takes."""
    return (
        Need(
            "memory to build plans", builder.bytes, builder.least_bytes,
            f"{measured.BUILDER_PEAK} times the weights, as measured with TensorRT-RTX", HERE, free_memory(),
            least_basis=f"{measured.BUILDER_LEAST} times the weights, with which it was killed", instead=_ELSEWHERE,
        ),
    )  # fmt: skip


def refusal_of(needs: Iterable[Need]) -> TooLittleRoom | None:
    """The error for what certainly does not fit; None where everything may."""
    short = [need for need in needs if need.is_short]
    if not short:
        return None
    kinds = dict.fromkeys(need.name.partition(" ")[0] for need in short)
    fixes = dict.fromkeys(need.instead for need in short)
    return TooLittleRoom(
        f"this machine has too little {' and '.join(kinds)}",
        why="; ".join(need.said(least=True) for need in short),
        fix=f"{'; '.join(filter(None, fixes))}; --ignore-limits begins all the same",
    )


def tight(needs: Iterable[Need]) -> list[str]:
    """What a user should know of what may not fit."""
    return [f"{need.said(least=False)}: it may not be enough" for need in needs if need.is_tight]
