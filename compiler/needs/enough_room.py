"""The disk and the memory that a run takes, held against this machine before anything is made of what was read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..request.request import CompileRequest
from ..store.copy_file import nearest
from ..store.killed_stages import clear_killed
from ..store.leftovers import clear_leftovers
from ..store.made_for import MadeFor
from ..store.stages import StageStore
from .room import Need, needs_of, refusal_of, tight

if TYPE_CHECKING:
    from .wanted import Wanted  # which needs the packages that trace


def require_room_for(
    request: CompileRequest, store: StageStore, wanted: Wanted, *, is_moved: bool = False
) -> list[str]:
    """Refuse what certainly has no room; return what to tell. ``is_moved``: what is made leaves the cache."""
    tidy(request, store)
    made_for = store.made_for or MadeFor("", request.pair.model, "", wanted.recipe.name, wanted.lowering.name)
    disk = wanted.disk(store, request.out, made_for, is_moved=is_moved)
    return require_room(needs_of(disk, wanted.work), ignored=request.ignore_limits)


def require_room(needs: Sequence[Need], *, ignored: bool) -> list[str]:
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
