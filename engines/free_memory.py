"""Memory available to this process, considering the machine and its control groups (containers, SLURM jobs)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


@dataclass(frozen=True)
class GroupFiles:
    """Names of the memory files in one version of Linux control groups. Page cache counts as available."""

    limit: str
    used: str
    cached: tuple[str, ...]
    swap_limit: str = ""
    swap_used: str = ""


_FIRST = GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_SECOND = GroupFiles(
    "memory.max", "memory.current", ("inactive_file", "active_file"), "memory.swap.max", "memory.swap.current"
)


def free_memory(root: Path = _ROOT) -> float:
    """Return the bytes that a process can allocate before something is killed, including swap; inf if unknown.

    ``root`` is the folder with ``/proc`` and ``/sys``.
    """
    free, swap = math.inf, 0
    with suppress(OSError, ValueError, KeyError):
        meminfo = _numbers(root / "proc" / "meminfo")
        swap = meminfo.get("SwapFree:", 0) * 1024
        free = meminfo["MemAvailable:"] * 1024 + swap
    return max(min([free, *(_remaining(folder, files, swap) for folder, files in control_groups(root))]), 0)


def return_freed_memory() -> None:
    """Return memory that was freed to the system; does nothing where the C library has no such call.

    glibc otherwise keeps what ONNX Runtime frees with a session in the middle of its heaps: a server whose drafters
    come and go would hold twice the memory that it uses.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def control_groups(root: Path) -> Iterator[tuple[Path, GroupFiles]]:
    """Yield every control group around this process, with the names of its files; a container sees its own as the top.

    ``root`` is the folder with ``/proc`` and ``/sys``.
    """
    base = root / "sys" / "fs" / "cgroup"
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc" / "self" / "cgroup").read_text(errors="surrogateescape").splitlines()
    tops = {base: (_SECOND, ""), base / "memory": (_FIRST, "")}
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            tops[base] = (_SECOND, path)
        elif "memory" in controllers.split(","):
            tops[base / "memory"] = (_FIRST, path)
    for top, (files, path) in tops.items():
        parts = [part for part in path.split("/") if part and part != ".."]
        for count in range(len(parts) + 1):
            yield top.joinpath(*parts[:count]), files


def _remaining(group: Path, files: GroupFiles, swap: int) -> float:
    """Return the remaining memory of a group; inf if it is unlimited or not visible."""
    with suppress(OSError, ValueError):  # "max"
        limit = int((group / files.limit).read_text())
        statistics = _numbers(group / "memory.stat")
        used = int((group / files.used).read_text()) - sum(statistics.get(name, 0) for name in files.cached)
        if files.swap_limit:
            swap = min(swap, _swap(group, files, swap))
        return limit - used + swap
    return math.inf


def _swap(group: Path, files: GroupFiles, swap: int) -> int:
    with suppress(OSError, ValueError):
        return int((group / files.swap_limit).read_text()) - int((group / files.swap_used).read_text())
    return swap


def _numbers(path: Path) -> dict[str, int]:
    """Read a file with a name and a number on each line."""
    fields = [line.split() for line in path.read_text(errors="replace").splitlines()]
    return {line[0]: int(line[1]) for line in fields if len(line) > 1}
