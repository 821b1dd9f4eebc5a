"""What a request holds in its slot: a row of the caches, its window, and what its last passes made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..draft_tree import DraftTree
from .held_columns import HeldColumns
from .memory import RowWindow, SlotArrays


@dataclass
class SlotRow:
    """One request that has a slot."""

    arrays: SlotArrays
    window: RowWindow
    row: int
    held: HeldColumns
    is_busy: bool = False  # no longer reading its prompt
    known: int = 0  # positions of the caches that its prompt has written so far
    tokens: Sequence[int] = ()  # emitted
    following: tuple[Sequence[int], int] = ((), 0)  # the next window that the drafter laid out, and its start
    tree: DraftTree | None = None  # of drafts, in place of those of that window
    path: Sequence[int] | None = None  # the columns that the last pass committed, where they are not the first ones
    nodes: Sequence[int] | None = None  # the drafts of a tree that the last pass accepted

    @property
    def committed(self) -> int:
        """How many columns of the window the last pass committed."""
        return self.window.committed - 1 + len(self.tokens) if self.tokens else 0

    @property
    def columns(self) -> slice | list[int]:
        """The columns of the window that the last pass committed."""
        return slice(self.committed) if self.path is None else [*self.path]

    @property
    def fed_columns(self) -> int:
        """How many columns the drafter has not seen."""
        return self.held.count + self.committed

    @property
    def fed_start(self) -> int:
        """The absolute position of the first of them."""
        return self.held.start if self.held.count else int(self.window.start[0])

    def close_up(self) -> None:
        """Move what the target's caches hold of an accepted path to where a chain would have put it."""
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
            for at in moved:  # no column of a path lies before its place, so none is lost
                cache[0, :, start + at] = cache[0, :, start + path[at]]
