"""Disk space that a build or an export needs."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..console.printing import size
from ..store.atomic_files import free_bytes
from ..store.cache_contents import entries
from ..store.copy_file import nearest, shares_blocks
from ..store.stage_origin import StageOrigin
from .work import PLAN_MIN

_WEIGHTS = ("attach-target", "attach-drafter", "plan-target", "plan-drafter")  # the steps that hold weights


@dataclass(frozen=True)
class Disk:
    """Bytes of weights in the cache and at the destination, without a download.

    An engine's files are copies of the cached ones; with ``shares_blocks`` the copies need no space. With ``adopts``
    the cached files move into the engine, on the same disk without a copy. An export's files are moved, so
    ``kept_bytes`` is 0 unless the destination is on another disk. ``done_bytes`` of the cached bytes may exist from an
    earlier run, or are freed before anything is written.
    """

    cache: str
    kept_bytes: int
    cache_free_bytes: int
    out: str
    out_bytes: int
    out_free_bytes: int
    is_one_disk: bool
    shares_blocks: bool
    done_bytes: int = 0
    adopts: bool = False

    @property
    def to_keep_bytes(self) -> int:
        """The bytes still to be written to the cache, at least."""
        return max(self.kept_bytes - self.done_bytes, 0)

    @property
    def to_copy_bytes(self) -> int:
        """The additional bytes of the engine or export."""
        return 0 if self.shares_blocks or (self.adopts and self.is_one_disk) else self.out_bytes

    @property
    def short_bytes(self) -> int:
        """The missing bytes; 0 if there is enough space."""
        if self.is_one_disk:
            return max(self.to_keep_bytes + self.to_copy_bytes - self.cache_free_bytes, 0)
        short = max(self.to_keep_bytes - self.cache_free_bytes, 0)
        return short + max(self.to_copy_bytes - self.out_free_bytes, 0)

    def describe(self) -> str:
        """Describe the space needed in each folder, and any shortage."""
        done = f", of which {size(self.done_bytes)} may already exist" if self.done_bytes else ""
        cache_text = f"{size(self.kept_bytes)} for the cache in {self.cache} ({size(self.cache_free_bytes)} free){done}"
        out = f"{size(self.out_bytes)} for {self.out} ({size(self.out_free_bytes)} free)"
        if not self.kept_bytes:
            text = out
        elif self.shares_blocks:
            text = f"{cache_text}; {self.out} shares its blocks and needs no extra space"
        elif self.adopts and self.is_one_disk:
            text = f"{cache_text}, from which the files move to {self.out}"
        else:
            text = f"{cache_text}, and a copy of {out}"
        missing = f"; SHORT BY {size(self.short_bytes)}" if self.short_bytes else ""
        return f"{text}, from the weight shapes{missing}"


def disk_of(
    cache: Path,
    out: Path,
    written: int,
    *,
    has_plans: bool = False,
    has_graphs: bool = True,
    is_moved: bool = False,
    adopts: bool = False,
    done_bytes: int = 0,
) -> Disk:
    """Return the minimum disk use of ``written`` bytes of weights.

    With ``has_plans``, plans hold the weights a second time, and the engine has only the plans. ``has_graphs`` is true
    if the graphs are made in the same run. ``adopts``: an engine's files are moved once it is finished.
    """
    first, second = nearest(cache), nearest(Path(os.path.realpath(out)))
    is_one_disk = first.stat().st_dev == second.stat().st_dev
    plans = int(PLAN_MIN * written) if has_plans else 0
    cached_bytes = (written if has_graphs else 0) + plans
    return Disk(
        cache=str(cache),
        kept_bytes=0 if is_moved and is_one_disk else cached_bytes,
        cache_free_bytes=free_bytes(cache),
        out=str(out),
        out_bytes=plans or written,
        out_free_bytes=free_bytes(out),
        is_one_disk=is_one_disk,
        shares_blocks=not is_moved and shares_blocks(cache, out),
        done_bytes=done_bytes,
        adopts=adopts,
    )


def done_bytes(root: Path, stage_origin: StageOrigin, names: Collection[str] = ()) -> int:
    """Return the bytes below ``root`` that a build may reuse, plus leftovers of killed runs, which are removed first.

    An upper bound: only hashed inputs decide whether a step is reused. ``names`` are other names of the model.
    """
    count, largest = 0, dict.fromkeys(_WEIGHTS, 0)
    for entry in entries(root):
        kind, its = entry.kind.rpartition("/")[2], entry.stage_origin
        if entry.is_leftover:
            count += entry.bytes
        elif its and kind in largest and _is_for(its, stage_origin, names):
            largest[kind] = max(largest[kind], entry.bytes)
    return count + sum(largest.values())


def _is_for(its: StageOrigin, wanted: StageOrigin, names: Collection[str]) -> bool:
    same = (its.precision, its.lowering) == (wanted.precision, wanted.lowering)
    return same and its.model in {wanted.model, *names}
