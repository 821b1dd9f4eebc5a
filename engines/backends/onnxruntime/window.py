"""The window of a row: the columns of its next pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....plugins.graph_contract import TENSORS
from ...draft_methods.draft_tree import DraftTree
from ...running.token_choice import TokenChoice
from .memory import Arrays


@dataclass
class NextWindow:
    """The next window of an active slot: the newest token, at absolute position ``start``, followed by drafts.

    The drafts are a chain, or those of ``tree``.
    """

    newest: int = 0
    drafts: Sequence[int] = ()
    start: int = 0
    tree: DraftTree | None = None

    def fill(self, newest: int, drafts: Sequence[int], start: int) -> None:
        """Lay out a chain of drafts."""
        self.newest, self.drafts, self.start, self.tree = newest, drafts, start, None

    def put_drafts(self, drafts: Sequence[int]) -> None:
        """Keep the newest token and replace the drafts by a chain."""
        self.drafts, self.tree = drafts, None

    def put_tree(self, tree: DraftTree) -> None:
        """Keep the newest token and replace the drafts by those of a tree."""
        self.drafts, self.tree = tree.tokens, tree

    def cut(self, drafts: int, choice: TokenChoice | None = None) -> None:
        """Keep at most ``drafts`` drafts; a host ``choice`` may remove or replace some."""
        if len(self.drafts) > drafts:
            self.drafts, self.tree = self.drafts[:drafts], self.tree and self.tree.cut(drafts)
        if choice is not None:
            self.put_drafts(choice.drafts(self.drafts, drafts))


class WindowArrays:
    """Graph inputs of one row: i64 ``input_ids`` [1, columns] and its lengths. Narrower views of it are bound."""

    def __init__(self, columns: int) -> None:
        self.input_ids = np.zeros((1, columns), np.int64)
        self.start, self.window_len, self.draft_len = (
            np.zeros(1, TENSORS[name].dtype) for name in ("start", "window_len", "draft_len")
        )

    def arrays(self, columns: int) -> Arrays:
        """Return the window's first columns and its lengths, by input name."""
        lengths = {"start": self.start, "window_len": self.window_len, "draft_len": self.draft_len}
        return {"input_ids": self.input_ids[:, :columns], **lengths}

    @property
    def committed(self) -> int:
        """Number of columns that are not drafts."""
        return int(self.window_len[0] - self.draft_len[0])

    def fill(self, ids: Sequence[int] | np.ndarray, start: int, draft_len: int) -> None:
        """Lay out the window: ``ids`` from absolute position ``start``, the last ``draft_len`` of them drafts."""
        self.input_ids[0, : len(ids)] = ids
        self.start[0], self.window_len[0], self.draft_len[0] = start, len(ids), draft_len

    def drafts(self) -> list[int]:
        """Return the drafts, the last of the valid columns."""
        drafts: list[int] = self.input_ids[0, self.committed : int(self.window_len[0])].tolist()
        return drafts
