"""What a build or an export takes of the disks that it writes to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..console.printing import size
from ..store.atomic_files import free_bytes
from ..store.copy_file import nearest, shares_blocks


@dataclass(frozen=True)
class Disk:
    """Bytes of weights below the stage cache and below the destination; a download comes on top.

    An engine's files are copies of the kept ones: ``shares_blocks`` says that they take no room of their own. An
    export's are moved, so that nothing is ``kept_bytes``.
    """

    cache: str
    kept_bytes: int
    cache_free_bytes: int
    out: str
    out_bytes: int
    out_free_bytes: int
    is_one_disk: bool
    shares_blocks: bool

    @property
    def short_bytes(self) -> int:
        """What is missing, 0 when there is room."""
        copied = 0 if self.shares_blocks else self.out_bytes
        if self.is_one_disk:
            return max(self.kept_bytes + copied - self.cache_free_bytes, 0)
        return max(self.kept_bytes - self.cache_free_bytes, 0) + max(copied - self.out_free_bytes, 0)

    def said(self) -> str:
        """What goes where, and whether there is room."""
        kept = f"{size(self.kept_bytes)} of kept steps in {self.cache} ({size(self.cache_free_bytes)} free)"
        out = f"{size(self.out_bytes)} for {self.out} ({size(self.out_free_bytes)} free)"
        if not self.kept_bytes:
            text = out
        elif self.shares_blocks:
            text = f"{kept}; {self.out} shares its blocks and takes no room"
        else:
            text = f"{kept}, and a copy of {out}"
        return text + (f"; {size(self.short_bytes)} ARE MISSING" if self.short_bytes else "")


def disk_of(cache: Path, out: Path, written: int, *, has_plans: bool = False, is_moved: bool = False) -> Disk:
    """Return what ``written`` bytes of weights take; plans hold them once more, and an engine then has only these."""
    kept = 0 if is_moved else written * (2 if has_plans else 1)
    first, second = nearest(cache), nearest(Path(os.path.realpath(out)))
    return Disk(
        cache=str(cache),
        kept_bytes=kept,
        cache_free_bytes=free_bytes(cache),
        out=str(out),
        out_bytes=written,
        out_free_bytes=free_bytes(out),
        is_one_disk=first.stat().st_dev == second.stat().st_dev,
        shares_blocks=not is_moved and shares_blocks(cache, out),
    )
