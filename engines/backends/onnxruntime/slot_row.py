"""The state of a request in its slot: its cache row, its window, and the results of its last passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..draft_tree import DraftTree
from .loaded_drafter import LoadedDrafter
from .memory import RowWindow, SlotArrays
from .pending_columns import PendingColumns


@dataclass
class SlotRow:
    """A request that has a slot, and the drafter that it keeps until its end."""

    drafter: LoadedDrafter
    arrays: SlotArrays
    window: RowWindow
    row: int
    held: PendingColumns
    is_busy: bool = False  # active: its prompt has been read
    known: int = 0  # cache positions that its prompt has written so far
    tokens: Sequence[int] = ()  # emitted
    following: tuple[Sequence[int], int] = ((), 0)  # the next window, laid out by the drafter, and its start
    tree: DraftTree | None = None  # draft tree that replaces the drafts of that window
    path: Sequence[int] | None = None  # columns that the last pass committed, unless they are the first ones
    nodes: Sequence[int] | None = None  # drafts of a tree that the last pass accepted

    @property
    def committed(self) -> int:
        """Number of window columns that the last pass committed."""
        return self.window.committed - 1 + len(self.tokens) if self.tokens else 0

    @property
    def columns(self) -> slice | list[int]:
        """The window columns that the last pass committed."""
        return slice(self.committed) if self.path is None else [*self.path]

    @property
    def fed_columns(self) -> int:
        """Number of columns that the drafter has not read."""
        return self.held.count + self.committed

    @property
    def fed_start(self) -> int:
        """The absolute position of the first of them."""
        return self.held.start if self.held.count else int(self.window.start[0])

    def close_up(self) -> None:
        """Move the target's cache entries of an accepted path to the positions that a chain would have used."""
        tree, self.path, self.nodes = self.window.tree, None, None
        if tree is None:
            return
        path = tree.path(self.tokens[:-1])
        self.nodes = [column - 1 for column in path[1:]]
        moved = [at for at, column in enumerate(path) if at != column]
        if not moved:
            return
        self.path, start = path, int(self.window.start[0])
        for cache in self.arrays.target_caches.values():
            for at in moved:  # a column never precedes its target position, so nothing is overwritten too early
                cache[0, :, start + at] = cache[0, :, start + path[at]]
