"""Whether this machine has the disk and the memory that a run takes, said before anything is made."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...plugins.errors import EnvironmentProblem, PeagleError
from ..console.printing import size
from ..hardware.memory import free_memory
from ..request.request import CompileRequest
from ..store.copy_file import nearest
from ..store.killed_stages import clear_killed
from ..store.leftovers import clear_leftovers
from ..store.stages import StageStore
from .disk import Disk
from .work import BUILDER_LEAST, BUILDER_PEAK, BuilderWork, BuildWork, CalibrationWork

HERE = "this machine"
DOWNLOAD = "disk for the download"
_CACHE = (
    "`peagle-compile cache prune --older-than 30d` frees what was not used for long, and so does other cleaning; "
    "or point PEAGLE_CACHE to a larger disk"
)
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


@dataclass(frozen=True)
class Outcome:
    """How the same command would end here without ``--dry-run``: its exit code, and why if it is not 0.

    The exit code is 0 without a known blocker; ``why`` then names what ``--ignore-limits`` overrides.
    """

    exit_code: int = 0
    why: str = ""

    @classmethod
    def of(cls, error: PeagleError | None, *, ignored: bool = False) -> Outcome:
        """The end with an error, or in spite of one that is ``ignored``."""
        if error is None:
            return NO_BLOCKER
        return cls(0, f"{error.what}; {error.why}") if ignored else cls(error.exit_code, error.in_a_line)

    def row(self) -> tuple[str, str]:
        """The last row of a dry run."""
        if self.exit_code:
            return ("without --dry-run", f"it ends here with exit code {self.exit_code}: {self.why}")
        if self.why:
            return ("without --dry-run", f"it begins, as --ignore-limits says, although {self.why}")
        return ("without --dry-run", "no known blocker on this machine")


NO_BLOCKER = Outcome()


def needs_of(disk: Disk, work: BuildWork, download: Need | None = None) -> tuple[Need, ...]:
    """What a build, an export or an FP8 checkpoint takes. Steps that take memory do so one after the other.

    What tracing and writing take of memory is little, and told by a dry run.
    """
    calibration = calibration_needs(work.calibration) if work.calibration else ()
    return (*disk_needs(disk, download), *calibration, *(builder_needs(work.builder) if work.builder else ()))


def disk_needs(disk: Disk, download: Need | None = None) -> tuple[Need, ...]:
    """Kept steps and what comes of them, after a download; what goes to one disk must have room there together."""
    kept, made, basis = disk.to_keep_bytes, disk.to_copy_bytes, "by the shapes of the weights"
    wanted = [
        *([download] if download else []),
        Need("disk for kept steps", kept, kept, basis, disk.cache, disk.cache_free_bytes, instead=_CACHE),
        Need("disk for what is made", made, made, basis, disk.out, disk.out_free_bytes, instead=_OUT),
    ]
    taken: dict[int, int] = {}
    needs = []
    for need in wanted:
        device = nearest(Path(need.where).absolute()).stat().st_dev
        needs.append(replace(need, before_bytes=taken.get(device, 0)))
        taken[device] = taken.get(device, 0) + need.least_bytes
    return tuple(need for need in needs if need.bytes)


def tracing_needs(count: int) -> tuple[Need, ...]:
    """What the process that traces and writes takes, which refuses nothing."""
    return (Need("memory to trace and write", count, 0, "on the safe side of what was seen", HERE, free_memory()),)


def calibration_needs(work: CalibrationWork) -> tuple[Need, ...]:
    """What the largest layer takes while it is calibrated on the CPU."""
    need = Need("memory to calibrate", work.bytes, work.bytes, "a layer in FP32", HERE, free_memory(), instead=_SCALES)
    return (need,) if work.is_here else ()


def builder_needs(builder: BuilderWork) -> tuple[Need, ...]:
    """What the process that builds a plan takes."""
    basis = f"{BUILDER_PEAK} times the weights, as measured with TensorRT-RTX"
    least = f"{BUILDER_LEAST} times the weights, with which it was killed"
    count, at_least, free = builder.bytes, builder.least_bytes, free_memory()
    return (Need("memory to build plans", count, at_least, basis, HERE, free, least_basis=least, instead=_ELSEWHERE),)


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


def check_needs(needs: Sequence[Need], *, ignored: bool) -> list[str]:
    """Raise ``TooLittleRoom`` for what certainly does not fit, unless limits are ``ignored``; return what to tell."""
    refusal = refusal_of(needs)
    if refusal and not ignored:
        raise refusal
    told = [f"begun all the same, as --ignore-limits says: {refusal.what}; {refusal.why}"] if refusal else []
    return [*told, *tight(needs)]


def tidy(request: CompileRequest, store: StageStore) -> None:
    """Remove what killed runs left, before it is said that there is no room."""
    clear_killed(store.root)
    clear_leftovers(nearest(Path(os.path.abspath(request.out)).parent))
