"""Checks of disk and memory before the work begins."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...engines.free_memory import free_memory
from ...plugins.errors import EnvironmentProblem, PeagleError
from ..console.printing import size
from ..request.request import CompileRequest
from ..store.copy_file import nearest
from ..store.killed_stages import clear_killed
from ..store.leftovers import clear_leftovers
from ..store.stages import StageStore
from .disk import Disk
from .work import BUILDER_MIN, BUILDER_PEAK, BuilderWork, BuildWork, CalibrationWork

HERE = "this machine"
DOWNLOAD = "disk for the download"
_CACHE = (
    "free space, for example with `peagle-compile cache prune --older-than 30d`, or set PEAGLE_CACHE to a folder on a "
    "larger disk"
)
_OUT = "set --out to a folder on a larger disk"
_SCALES = "use --scales with ranges calibrated on a machine with more memory, which skips calibration"
_ELSEWHERE = "run `peagle-compile export` here, and `peagle-compile build --from` on a machine with more memory"


class InsufficientResources(EnvironmentProblem):
    """This machine certainly has too little disk space or memory (exit code 3)."""


@dataclass(frozen=True)
class Need:
    """A resource that a build needs: about ``bytes`` by ``basis``, and at least ``least_bytes`` by ``least_basis``.

    ``before_bytes`` are taken first by other needs on the same disk. ``instead`` is the advice if there is too little.
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
        """True if it certainly does not fit."""
        return self.least_bytes > 0 and self.before_bytes + self.least_bytes > self.free_bytes

    @property
    def is_tight(self) -> bool:
        """True if it may not fit, by the estimate."""
        return not self.is_short and self.before_bytes + self.bytes > self.free_bytes

    def describe(self, *, minimum: bool) -> str:
        """Describe the need, its minimum if ``minimum``, and the free space."""
        count, basis = (self.least_bytes, self.least_basis) if minimum else (self.bytes, "")
        before = f" after {size(self.before_bytes)} for earlier steps" if self.before_bytes else ""
        return (
            f"{self.name}: {size(count)} ({basis or self.basis}){before}, {size(self.free_bytes)} free ({self.where})"
        )


@dataclass(frozen=True)
class Outcome:
    """The expected outcome of the same command without ``--dry-run``: its exit code, and the reason if it is not 0.

    The exit code is 0 without a known blocker; ``why`` then names what ``--ignore-limits`` overrides.
    """

    exit_code: int = 0
    why: str = ""

    @classmethod
    def of(cls, error: PeagleError | None, *, ignored: bool = False) -> Outcome:
        """Return the outcome for an error, or for one that is ``ignored``."""
        if error is None:
            return NO_BLOCKER
        return cls(0, f"{error.what}; {error.why}") if ignored else cls(error.exit_code, error.one_line)

    def row(self) -> tuple[str, str]:
        """The last row of a dry run."""
        if self.exit_code:
            return ("expected outcome", f"fails on this machine with exit code {self.exit_code}: {self.why}")
        if self.why:
            return ("expected outcome", f"starts because of --ignore-limits, although {self.why}")
        return ("expected outcome", "no known blocker on this machine")


NO_BLOCKER = Outcome()


def needs_of(disk: Disk, work: BuildWork, download: Need | None = None) -> tuple[Need, ...]:
    """Return the needs of a build, an export or an FP8 checkpoint. Steps that need memory run one after the other.

    Tracing and writing need little memory, which only a dry run shows.
    """
    calibration = calibration_needs(work.calibration) if work.calibration else ()
    return (*disk_needs(disk, download), *calibration, *(builder_needs(work.builder) if work.builder else ()))


def disk_needs(disk: Disk, download: Need | None = None) -> tuple[Need, ...]:
    """Return the needs of a download, the cache and the output; needs on the same disk add up."""
    cache_bytes, output_bytes, basis = disk.to_keep_bytes, disk.to_copy_bytes, "from the weight shapes"
    wanted = [
        *([download] if download else []),
        Need(
            "disk for cached steps", cache_bytes, cache_bytes, basis, disk.cache, disk.cache_free_bytes, instead=_CACHE
        ),
        Need("disk for the output", output_bytes, output_bytes, basis, disk.out, disk.out_free_bytes, instead=_OUT),
    ]
    taken: dict[int, int] = {}
    needs = []
    for need in wanted:
        device = nearest(Path(need.where).absolute()).stat().st_dev
        needs.append(replace(need, before_bytes=taken.get(device, 0)))
        taken[device] = taken.get(device, 0) + need.least_bytes
    return tuple(need for need in needs if need.bytes)


def tracing_needs(count: int) -> tuple[Need, ...]:
    """Return the memory for tracing and writing, which never blocks a build."""
    return (Need("memory to trace and write", count, 0, "a safe upper estimate", HERE, free_memory()),)


def calibration_needs(work: CalibrationWork) -> tuple[Need, ...]:
    """Return the memory of the largest layer during calibration on the CPU."""
    need = Need("memory to calibrate", work.bytes, work.bytes, "a layer in FP32", HERE, free_memory(), instead=_SCALES)
    return (need,) if work.is_local else ()


def builder_needs(builder: BuilderWork) -> tuple[Need, ...]:
    """Return the memory of the process that builds a plan."""
    basis = f"{BUILDER_PEAK} times the weights, as measured with TensorRT-RTX"
    least_basis = f"{BUILDER_MIN} times the weights, with which a build ran out of memory"
    count, at_least, free = builder.bytes, builder.least_bytes, free_memory()
    return (
        Need("memory to build plans", count, at_least, basis, HERE, free, least_basis=least_basis, instead=_ELSEWHERE),
    )


def refusal_of(needs: Iterable[Need]) -> InsufficientResources | None:
    """Return the error for needs that certainly do not fit; None if all may fit."""
    short = [need for need in needs if need.is_short]
    if not short:
        return None
    kinds = dict.fromkeys(need.name.partition(" ")[0].replace("disk", "disk space") for need in short)
    fixes = dict.fromkeys(need.instead for need in short)
    return InsufficientResources(
        f"this machine has too little {' and '.join(kinds)}",
        why="; ".join(need.describe(minimum=True) for need in short),
        fix=f"{'; '.join(filter(None, fixes))}; or add --ignore-limits to start anyway",
    )


def possible_shortages(needs: Iterable[Need]) -> list[str]:
    """Return warnings for needs that may not fit."""
    return [f"{need.describe(minimum=False)}: may not be enough" for need in needs if need.is_tight]


def check_needs(needs: Sequence[Need], *, ignored: bool) -> list[str]:
    """Raise ``InsufficientResources`` if a need certainly does not fit, unless ``ignored``; return warnings."""
    refusal = refusal_of(needs)
    if refusal and not ignored:
        raise refusal
    warnings = [f"started because of --ignore-limits: {refusal.what}; {refusal.why}"] if refusal else []
    return [*warnings, *possible_shortages(needs)]


def remove_leftovers(request: CompileRequest, store: StageStore) -> None:
    """Remove leftovers of killed runs before checking the free space."""
    clear_killed(store.root)
    clear_leftovers(nearest(Path(os.path.abspath(request.out)).parent))
