"""``peagle-compile cache``: list and prune the build cache."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...plugins.errors import UsageError
from ...plugins.problems import counted
from ..console.printing import columns, emit, interruptible, note, size
from ..console.sizes import size_option
from .flags.help_text import program
from .flags.shared_flags import Json

if TYPE_CHECKING:
    from ..store.cache_contents import CacheEntry, Pruned

_HOURS = {"h": 1, "d": 24, "w": 24 * 7}
_NUMBER = r"(\d{1,15}(?:\.\d+)?)"
_AGE = re.compile(rf"{_NUMBER}({'|'.join(_HOURS)})", re.ASCII)

cache = program(help="List or prune the build cache.")

OlderThan = Annotated[
    str | None,
    typer.Option(
        metavar="AGE", help="Remove entries unused for this long, such as 12h, 30d or 8w.", show_default=False
    ),
]
MaxSize = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE",
        parser=size_option("--max-size"),
        help="Remove the least recently used entries until at most this size is left, such as 50GB or 0.",
        show_default=False,
    ),
]
Preview = Annotated[bool, typer.Option("--dry-run", help="Show what would be removed without removing it.")]


@cache.callback(invoke_without_command=True)
def _cache(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@interruptible("nothing was changed")
def list_cache(as_json: Json = False) -> None:
    """List the entries of the build cache with their size, last use and purpose.

    Example: peagle-compile cache list
    """
    from ..store.cache_contents import entries
    from ..store.stages import StageStore

    root = StageStore.default().root
    found = entries(root)
    total = sum(entry.bytes for entry in found)
    if as_json:
        emit({"cache": str(root), "bytes": total, "entries": [_fields(entry) for entry in found]})
        return
    if found:
        print(columns([("step", "size", "last used", "made for"), *map(_row, reversed(found))]) + "\n")
    print(f"{size(total)} in {counted(found, 'step')} below {root}")


@interruptible("some entries may have been removed; `peagle-compile cache list` shows the rest")
def prune_cache(
    older_than: OlderThan = None, max_size: MaxSize = None, dry_run: Preview = False, as_json: Json = False
) -> None:
    """Remove cache entries, least recently used first; without options, only leftovers of killed builds.

    Engines do not depend on the cache, and entries in use are kept. A later build recreates what it needs.

    Example: peagle-compile cache prune --older-than 30d --max-size 50GB
    """
    from ..store.cache_contents import prune
    from ..store.stages import StageStore

    root = StageStore.default().root
    done = prune(root, older_than=_seconds(older_than), max_bytes=max_size, dry_run=dry_run)
    if as_json:
        emit(
            {
                "cache": str(root),
                "dry_run": dry_run,
                "freed_bytes": done.freed_bytes,
                "remaining_bytes": done.remaining_bytes,
                "removed": [_fields(entry) for entry in done.removed],
                "in_use": [_fields(entry) for entry in done.in_use],
            }
        )
    else:
        print(_summary(done, dry_run))
        if older_than is None and max_size is None:
            note("only leftovers of killed builds are removed; add --older-than or --max-size to remove more")


def _summary(done: Pruned, dry_run: bool) -> str:
    verb = "would be removed" if dry_run else "removed"
    rows = [(verb, *_row(entry)) for entry in done.removed]
    rows += [("kept (in use)", *_row(entry)) for entry in done.in_use]
    table = [columns(rows) + "\n"] if rows else []
    freed = f"{size(done.freed_bytes)} {'would be' if dry_run else 'were'} freed, {size(done.remaining_bytes)} remain"
    return "\n".join([*table, freed])


def _row(entry: CacheEntry) -> tuple[str, str, str, str]:
    stage_origin = "a killed process" if entry.is_leftover else str(entry.stage_origin or "unknown")
    return f"{entry.kind}/{entry.path.name[:12]}", size(entry.bytes), _ago(entry.used), stage_origin


def _ago(used: float) -> str:
    hours = max(time.time() - used, 0) / 3600
    if hours < 1:
        return "within the hour"
    return f"{hours:.0f} hours ago" if hours < 48 else f"{hours / 24:.0f} days ago"


def _fields(entry: CacheEntry) -> dict[str, Any]:
    return {
        "path": str(entry.path),
        "kind": entry.kind,
        "bytes": entry.bytes,
        "last_used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.used)),
        "made_for": asdict(entry.stage_origin) if entry.stage_origin else None,
        "leftover": entry.is_leftover,
    }


def _seconds(age: str | None) -> float | None:
    if age is None:
        return None
    if not (match := _AGE.fullmatch(age)):
        raise UsageError(
            f"--older-than {age} is not a valid age", fix="use hours, days or weeks, such as 12h, 30d or 8w"
        )
    return float(match[1]) * _HOURS[match[2]] * 3600
