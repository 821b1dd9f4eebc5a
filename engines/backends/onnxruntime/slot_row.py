"""The state of a request in its slot: its cache row, its window, and the results of its last passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .loaded_drafter import LoadedDrafter
from .memory import SlotArrays
from .pending_columns import PendingColumns
from .window import NextWindow


@dataclass
class SlotRow:
    """A request that has a slot, and the drafter that it keeps until its end."""

    drafter: LoadedDrafter
    arrays: SlotArrays
    window: NextWindow
    row: int
    held: PendingColumns
    is_busy: bool = False  # active: its prompt has been read
    known: int = 0  # cache positions that its prompt has written so far
    tokens: Sequence[int] = ()  # emitted by the last pass
    committed: int = 0  # number of window columns that the last pass committed
    columns: slice | list[int] = field(default_factory=lambda: slice(0))  # these columns
    following: NextWindow = field(default_factory=NextWindow)  # laid out by the drafter
    nodes: Sequence[int] | None = None  # drafts of a tree that the last pass accepted

    @property
    def fed_columns(self) -> int:
        """Number of columns that the drafter has not read."""
        return self.held.count + self.committed

    @property
    def fed_start(self) -> int:
        """The absolute position of the first column that the drafter has not read."""
        return self.held.start if self.held.count else self.window.start

    def commit(self, tokens: Sequence[int]) -> None:
        """Record the tokens that a pass emitted.

        The target's cache entries of an accepted path move to the positions that a chain would have used.
        """
        self.tokens, tree = tokens, self.window.tree
        self.committed = len(tokens)
        self.columns, self.nodes = slice(self.committed), None
        if tree is None:
            return
        path = tree.path(tokens[:-1])
        self.nodes = [column - 1 for column in path[1:]]
        if path[-1] >= len(path):  # ascending columns: otherwise they are the first ones
            first = next(at for at, column in enumerate(path) if at != column)
            self.columns = path
            self.arrays.close_up(self.window.start, path[first:], first)
