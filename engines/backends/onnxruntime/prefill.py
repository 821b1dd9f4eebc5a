"""Lanes of a prompt on ONNX Runtime: one row whose window is a chunk of the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Chunk
from .prompt_row import PromptRow
from .sessions import Emitted
from .window import NextWindow


class SessionPrompt:
    """Runs both graphs over one chunk of a prompt.

    After the last chunk, ``advance`` lays out the slot's first window, ``following``.
    """

    def __init__(self, row: PromptRow, chunk: Chunk, following: NextWindow) -> None:
        self._row, self._chunk, self._following = row, chunk, following
        row.window.fill(chunk.ids, chunk.start, draft_len=0)
        row.forced_next[0] = chunk.forced_next

    def verify(self, k: int) -> None:
        """Run the target over the whole chunk."""
        chunk = self._chunk
        if chunk.logprobs is None:
            self._row.verify(len(chunk.ids), k + 1)
        else:
            chunk.logprobs.add(chunk.start, self._row.score(len(chunk.ids)))

    def draft(self, k: int) -> None:
        """Run the drafter over the whole chunk, or over several small ones together: only the last has drafts."""
        if self._chunk.is_last or not self._row.can_wait(len(self._chunk.ids)):
            self._row.draft(k)
        else:
            self._row.defer()

    def draft_tree(self, k: int) -> None:
        """Run the drafter over the whole chunk: the first drafts form a chain."""
        self.draft(k)

    def extend(self) -> None:
        """Run the drafter over its last draft, if the result will be verified."""
        if self._chunk.is_last:
            self._row.extend()

    def defer(self) -> None:
        """Defer the chunk to the drafter's next pass, if there will be one."""
        self._row.defer()

    def advance(self, k: int) -> None:
        """Lay out the slot's first window after the last chunk; do nothing after other chunks."""
        if self._chunk.is_last:
            self._row.advance(k, self._following)

    def emission(self) -> Emitted:
        """Return the emission, one row."""
        return Emitted([self._row.emitted()], (0,))

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Write the drafts into the slot's first window, after the token that follows the prompt."""
        if drafts[0] is not None:
            self._following.put_drafts(drafts[0])
