"""Words that a text must not have: which tokens would complete one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class BadWords:
    """Follows one text; a token takes as long as the words are of different lengths, however many there are."""

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        """``words`` are token ids, one at least each."""
        self._last: dict[tuple[int, ...], list[int]] = {}  # by the tokens of a word before its last
        for word in words:
            self._last.setdefault(tuple(word[:-1]), []).append(word[-1])
        self._lengths = sorted({len(begun) for begun in self._last})
        self._tail: tuple[int, ...] = ()  # of the text, as long as it matters

    def __bool__(self) -> bool:
        return bool(self._last)

    def add(self, token: int) -> None:
        """Note a token of the text."""
        most = self._lengths[-1] if self._lengths else 0
        self._tail = (*self._tail, token)[-most:] if most else ()

    def completing(self) -> list[int]:
        """Return the ids that would complete a word now."""
        tail = self._tail
        begun = [tail[len(tail) - length :] for length in self._lengths if length <= len(tail)]
        return [last for each in begun for last in self._last.get(each, ())]
