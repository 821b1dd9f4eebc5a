"""Bad words: the tokens that would complete one of them in a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...plugins.errors import UsageError

MAX_TOKENS = 1 << 14  # of all bad words of a request


def require_possible(words: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raise ``UsageError`` for words with too many tokens, or with a token outside the model's vocabulary."""
    if (count := sum(map(len, words))) > MAX_TOKENS:
        raise UsageError(
            f"bad_words has {count} tokens, but at most {MAX_TOKENS} are allowed",
            why="a word counts twice if it is tokenized differently after a space",
            fix="shorten bad_words",
        )
    if (largest := max((max(word) for word in words), default=0)) >= vocab_size:
        raise UsageError(
            f"bad_words: a word contains token id {largest}, which is out of range",
            why=f"the ids of the target's vocabulary are 0 to {vocab_size - 1}",
            fix="remove the word: the model cannot generate it",
        )


class BadWords:
    """Follows one text.

    The time per token depends on the number of different word lengths, not on the number of words.
    """

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        """``words`` are token ids, at least one each."""
        last_tokens: dict[tuple[int, ...], list[int]] = {}  # last tokens of words, by the tokens before
        for word in words:
            last_tokens.setdefault(tuple(word[:-1]), []).append(word[-1])
        self._ends = {begun: np.unique(np.array(last, np.int64)) for begun, last in last_tokens.items()}
        self._lengths = sorted({len(begun) for begun in last_tokens})
        self._tail: tuple[int, ...] = ()  # the end of the text, as long as the longest word needs

    def __bool__(self) -> bool:
        return bool(self._ends)

    def add(self, token: int) -> None:
        """Add a token of the text."""
        longest = self._lengths[-1] if self._lengths else 0
        self._tail = (*self._tail, token)[-longest:] if longest else ()

    def completing(self) -> np.ndarray:
        """Return the ids that would complete a word now, i64, unordered and possibly repeated."""
        tail = self._tail
        begun = (tail[len(tail) - length :] for length in self._lengths if length <= len(tail))
        found = [last for each in begun if (last := self._ends.get(each)) is not None]
        return np.concatenate(found) if found else _NONE


_NONE = np.empty(0, np.int64)
