"""Prefix cache: cache entries of earlier texts are copied instead of computed again.

Texts are kept in blocks of tokens. A block is found by its tokens, by all tokens before it, and by the one after it:
the drafter's entry p depends on token p + 1. Texts with a common prefix share their first blocks, so a growing
conversation adds only its new blocks. The last token of a prompt is never in a block that is reused: its pass emits the
first new token. Texts of different salts share nothing, so that a client cannot infer from timings what another client
sent.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..backends.base import KeptEntries

BLOCK = 16  # tokens; fewer are read as fast as they are copied

Copy = Callable[[int, int], KeptEntries]  # copy the entries from one position up to another


@dataclass(eq=False)
class _Block:
    """The entries of a block, and the blocks that follow it by their tokens."""

    entries: KeptEntries
    drafts: bool
    parent: _Block | None
    key: bytes
    following: dict[bytes, _Block] = field(default_factory=dict)

    @property
    def use(self) -> int:
        """The drafter's use of the block: 0 if the drafter cannot read it, 1 if the entries allow reading, 2 if the
        drafter has read it."""
        return (1 + self.entries.is_read) if self.drafts else 0


class PrefixCache:
    """The most recently used blocks whose entries fit into ``max_bytes``; 0 keeps none.

    ``token_bytes`` is the estimated memory of a token's entries. A block outlives all blocks that follow it.
    """

    def __init__(self, max_bytes: int, token_bytes: int) -> None:
        self.max_bytes, self._block_bytes = max_bytes, BLOCK * token_bytes
        self._first: dict[bytes, _Block] = {}
        # Least recently used first, a block after its followers.
        self._blocks: OrderedDict[_Block, None] = OrderedDict()
        self.num_bytes = 0

    def find(self, text: Sequence[int], *, drafts: bool, salt: str | None = None) -> list[KeptEntries]:
        """Return the entries of the text's first blocks, in order; ``drafts``: a drafter needs them too."""
        path: list[_Block] = []
        for key in _keys(text, salt):
            block = (path[-1].following if path else self._first).get(key)
            if block is None or (drafts and not block.drafts):
                break
            path.append(block)
        self._touch(path)
        return [block.entries for block in path]

    def keep(self, text: Sequence[int], copy: Copy, *, drafts: bool, salt: str | None = None) -> None:
        """Keep the blocks of a text that are missing, or of which a drafter has read more than before.

        Drops the least recently used blocks to make room. ``drafts``: the drafter has read the text or can. If the
        drafter has not read a block, it has not read later blocks either.
        """
        if not self._block_bytes or self._block_bytes > self.max_bytes:
            return
        path: list[_Block] = []
        has_newer = True
        for at, key in enumerate(_keys(text, salt)):
            siblings = path[-1].following if path else self._first
            block = siblings.get(key)
            if block is None or (has_newer and block.use < 2 * drafts):
                if block is None and not self._make_room(path):
                    break
                before = block.use if block else -1
                block = self._put(copy(at * BLOCK, (at + 1) * BLOCK), block, drafts, path, key)
                siblings[key], has_newer = block, block.use > before
            path.append(block)
        self._touch(path)
        while self.num_bytes > self.max_bytes:  # columns that a drafter has yet to read come on top of the estimate
            self._drop(next(iter(self._blocks)))

    def _put(
        self, entries: KeptEntries, was: _Block | None, drafts: bool, path: Sequence[_Block], key: bytes
    ) -> _Block:
        """Return a block with these entries, unless the drafter knew more of the block that ``was`` there."""
        block = _Block(entries, drafts, path[-1] if path else None, key)
        if was is not None:
            if block.use <= was.use:
                return was
            self.num_bytes -= was.entries.num_bytes
            was.entries, was.drafts = entries, drafts
            block = was
        self.num_bytes += entries.num_bytes
        self._blocks[block] = None
        return block

    def _make_room(self, path: Sequence[_Block]) -> bool:
        """Make room for a block after those of ``path``; return whether that was possible."""
        while self.num_bytes + self._block_bytes > self.max_bytes:
            oldest = next(iter(self._blocks))
            if oldest in path:
                return False
            self._drop(oldest)
        return True

    def _touch(self, path: Sequence[_Block]) -> None:
        for block in reversed(path):
            self._blocks.move_to_end(block)

    def _drop(self, block: _Block) -> None:
        del self._blocks[block]
        del (block.parent.following if block.parent else self._first)[block.key]
        self.num_bytes -= block.entries.num_bytes


def _keys(text: Sequence[int], salt: str | None) -> list[bytes]:
    """Return the key of each whole block: its tokens and the one after it; that of the first has the salt too."""
    tokens = np.asarray(text, np.int64)
    keys = [tokens[start : start + BLOCK + 1].tobytes() for start in range(0, len(tokens) - BLOCK, BLOCK)]
    if keys and salt is not None:  # hashed, because the cache's limit does not count the bytes of keys
        keys[0] += hashlib.sha256(salt.encode()).digest()
    return keys
