"""What a build or an export takes of the disks that it writes to."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..console.printing import size
from ..store.atomic_files import free_bytes
from ..store.cache_contents import entries
from ..store.copy_file import nearest, shares_blocks
from ..store.made_for import MadeFor
from .work import PLAN_LEAST

_WEIGHTS = ("attach-target", "attach-drafter", "plan-target", "plan-drafter")  # the steps that hold them


@dataclass(frozen=True)
class Disk:
    """Bytes of weights below the stage cache and below the destination; a download comes on top.

    An engine's files are copies of the kept ones: ``shares_blocks`` says that they take no room of their own. An
    export's are moved, so that nothing is ``kept_bytes`` unless it goes to another disk. ``done_bytes`` of what is kept
    may lie there from an earlier run, or go before anything is written.
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

    @property
    def to_keep_bytes(self) -> int:
        """What is still to be written to the cache, at least."""
        return max(self.kept_bytes - self.done_bytes, 0)

    @property
    def to_copy_bytes(self) -> int:
        """What an engine or an export takes beside that."""
        return 0 if self.shares_blocks else self.out_bytes

    @property
    def short_bytes(self) -> int:
        """What is missing, 0 when there is room."""
        if self.is_one_disk:
            return max(self.to_keep_bytes + self.to_copy_bytes - self.cache_free_bytes, 0)
        short = max(self.to_keep_bytes - self.cache_free_bytes, 0)
        return short + max(self.to_copy_bytes - self.out_free_bytes, 0)

    def said(self) -> str:
        """What goes where, and whether there is room."""
        done = f", of which {size(self.done_bytes)} may be there already" if self.done_bytes else ""
        kept = f"{size(self.kept_bytes)} of kept steps in {self.cache} ({size(self.cache_free_bytes)} free){done}"
        out = f"{size(self.out_bytes)} for {self.out} ({size(self.out_free_bytes)} free)"
        if not self.kept_bytes:
            text = out
        elif self.shares_blocks:
            text = f"{kept}; {self.out} shares its blocks and takes no room"
        else:
            text = f"{kept}, and a copy of {out}"
        missing = f"; {size(self.short_bytes)} ARE MISSING" if self.short_bytes else ""
        return f"{text}, by the shapes of the weights{missing}"


def disk_of(
    cache: Path,
    out: Path,
    written: int,
    *,
    has_plans: bool = False,
    has_graphs: bool = True,
    is_moved: bool = False,
    done_bytes: int = 0,
) -> Disk:
    """Return what ``written`` bytes of weights take, at least.

    Plans hold them once more, and an engine then has only these; ``has_graphs``: their graphs are made here.
    """
    first, second = nearest(cache), nearest(Path(os.path.realpath(out)))
    is_one_disk = first.stat().st_dev == second.stat().st_dev
    plans = int(PLAN_LEAST * written) if has_plans else 0
    kept = (written if has_graphs else 0) + plans
    return Disk(
        cache=str(cache),
        kept_bytes=0 if is_moved and is_one_disk else kept,
        cache_free_bytes=free_bytes(cache),
        out=str(out),
        out_bytes=plans or written,
        out_free_bytes=free_bytes(out),
        is_one_disk=is_one_disk,
        shares_blocks=not is_moved and shares_blocks(cache, out),
        done_bytes=done_bytes,
    )


def done_bytes(root: Path, made_for: MadeFor, names: Collection[str] = ()) -> int:
    """Bytes below ``root`` that a build for the same may find done, and those of killed ones, which go first.

    Never less than is found: whether a step is taken again is known when its inputs were hashed. ``names`` are others
    of the model.
    """
    count, largest = 0, dict.fromkeys(_WEIGHTS, 0)
    for entry in entries(root):
        kind, its = entry.kind.rpartition("/")[2], entry.made_for
        if entry.is_leftover:
            count += entry.bytes
        elif its and kind in largest and _is_for(its, made_for, names):
            largest[kind] = max(largest[kind], entry.bytes)
    return count + sum(largest.values())


def _is_for(its: MadeFor, wanted: MadeFor, names: Collection[str]) -> bool:
    same = (its.precision, its.lowering) == (wanted.precision, wanted.lowering)
    return same and its.model in {wanted.model, *names}
