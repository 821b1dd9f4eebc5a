"""A drafter in memory: its session, its caches for every slot, and what its passes are bound to.

A backend has the engine's own drafter, and can load others, which share the target. Everything that belongs to one
drafter is kept here, so that all of it is freed when the last request that uses the drafter has ended.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ....plugins.graph_contract import CANDIDATES, DRAFTER_INPUTS, NEXT
from .memory import CacheArrays
from .pass_arrays import PassArrays
from .sessions import Sessions

if TYPE_CHECKING:
    from .prompt_row import PromptRow

_DRAFTERS = (*DRAFTER_INPUTS, *NEXT, *CANDIDATES)


class LoadedDrafter:
    """The sessions of the target and of this drafter, and their caches; the target's are the same for all drafters.

    ``key`` identifies its cache entries, and is empty for the engine's own drafter. An engine without a drafter has an
    object without a session.
    """

    def __init__(self, sessions: Sessions, caches: CacheArrays, slots: int, key: str = "") -> None:
        self.sessions, self.caches, self.key = sessions, caches, key
        self.chain = sessions.chain(slots)
        self.bindings: dict[tuple[int, ...], Any] = {}
        # Rows that read chunks of prompts, by cache row, width and scored columns; least recently used first.
        self.prompt_rows: OrderedDict[tuple[int, int, int], PromptRow] = OrderedDict()
        self._arrays: dict[tuple[int, ...], PassArrays] = {}

    def arrays(self, first: int, rows: int, columns: int, emitted: int) -> PassArrays:
        """Return the arrays of passes over up to ``rows`` rows from cache row ``first`` on, allocated once."""
        key = first, rows, columns, emitted
        if key not in self._arrays:
            self._arrays[key] = PassArrays(_DRAFTERS, rows, columns, emitted, self.sessions)
        return self._arrays[key]
