"""Prefix cache: caches of earlier prompts are copied instead of computed again.

A prompt is kept after it has been read. The next prompt reuses the common prefix without its last token: the drafter's
entry p depends on token p + 1, which differs there, and the last token's pass emits the first new token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..backends.base import KeptPrompt

LEAST_TOKENS = 16  # shorter prefixes are read as fast as they are copied


@dataclass(frozen=True)
class _Beginning:
    """A prompt and its caches; ``drafts`` says that the drafter has read it too."""

    tokens: np.ndarray
    kept: KeptPrompt
    drafts: bool


class PrefixCache:
    """The most recently used prompts whose caches fit into ``most_bytes``; 0 keeps none."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[int, _Beginning] = OrderedDict()  # least recently used first
        self._made = 0
        self.num_bytes = 0

    def find(self, prompt: Sequence[int], *, drafts: bool) -> tuple[KeptPrompt, int] | None:
        """Return the kept prompt with the longest common prefix, and how many of its tokens to reuse."""
        tokens, best, most = np.asarray(prompt), None, LEAST_TOKENS - 1
        for key, entry in self._entries.items():
            if (entry.drafts or not drafts) and (common := _common(tokens, entry.tokens) - 1) > most:
                best, most = key, common
        if best is None:
            return None
        self._entries.move_to_end(best)
        return self._entries[best].kept, most

    def takes(self, prompt: Sequence[int], num_bytes: int, *, drafts: bool) -> bool:
        """Return whether to keep a prompt of this size: it must fit, and must not be a prefix of a kept one."""
        if len(prompt) <= LEAST_TOKENS or not 0 < num_bytes <= self._most_bytes:
            return False
        tokens = np.asarray(prompt)
        return not any(
            _common(tokens, entry.tokens) == len(tokens) and (entry.drafts or not drafts)
            for entry in self._entries.values()
        )

    def add(self, prompt: Sequence[int], kept: KeptPrompt, *, drafts: bool) -> None:
        """Keep a prompt; its prefixes and the least recently used prompts are dropped to make room."""
        tokens = np.asarray(prompt)
        for key, entry in list(self._entries.items()):
            if _common(tokens, entry.tokens) == len(entry.tokens) and (drafts or not entry.drafts):
                self._drop(key)
        self._made += 1
        self._entries[self._made] = _Beginning(tokens, kept, drafts)
        self.num_bytes += kept.num_bytes
        while self.num_bytes > self._most_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: int) -> None:
        self.num_bytes -= self._entries.pop(key).kept.num_bytes


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """Return the length of the common prefix of two prompts."""
    length = min(len(first), len(second))
    differ = np.nonzero(first[:length] != second[:length])[0]
    return int(differ[0]) if len(differ) else length
