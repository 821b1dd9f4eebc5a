"""What a chat template may use up: steps, characters and processor time. A template is a program of somebody else's."""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any, TypeVar

T = TypeVar("T")

MOST_STEPS = 1_000_000  # iterations, calls and comparisons; templates that people use take some thousand
MOST_CHARACTERS = 2**22  # written or copied on the way, and a share more for what the messages themselves hold
COPIES = 64
MOST_SECONDS = 5.0  # of this thread's processor time
MOST_COUNT = 100_000  # a number that says how long something becomes; the sandbox's own limit of a range

_EACH = 16  # what a value inside another counts for, however short it is: walking through it takes time too
_SEVERAL = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)


class TooMuchError(Exception):
    """A template went past what it may use."""


class Meter:
    """Counts what one rendering uses, and raises ``TooMuchError`` where it is more than the limits."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, given: int) -> None:
        """Start anew; ``given`` is how many characters the messages hold."""
        self._steps = MOST_STEPS
        self._most = self._left = MOST_CHARACTERS + COPIES * given
        self._until = time.thread_time() + MOST_SECONDS

    def step(self) -> None:
        """Count an iteration, a call or a comparison."""
        self._steps -= 1
        if self._steps < 0:
            raise TooMuchError(f"it goes through more than {MOST_STEPS:,} steps")
        if self._steps % 16 == 0 and time.thread_time() > self._until:
            raise TooMuchError(f"it runs for more than {MOST_SECONDS:g} seconds")

    def require(self, characters: int) -> None:
        """Raise if so many more characters are too many; what is to be made is asked about before it is."""
        if characters > self._left:
            raise TooMuchError(f"it makes more than {self._most:,} characters of text")

    def charge(self, characters: int) -> None:
        """Count characters that were made."""
        self.require(characters)
        self._left -= characters

    def made(self, value: T) -> T:
        """Count a new value, and return it.

        Of a container its own length counts; all that is in it must be short enough to be written out.
        """
        self.step()
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, Mapping | list | tuple):
            self.charge(len(value))
            self.require(self.size(value))
        return value

    def size(self, value: Any) -> int:
        """How many characters a value would be written with, about, and no further than what is left."""
        total, stack = 0, [value]
        while stack and total <= self._left:
            each = stack.pop()
            if isinstance(each, str):
                total += len(each)
            elif isinstance(each, Mapping):
                total += _EACH * len(each)
                stack += [*each.keys(), *each.values()]
            elif isinstance(each, _SEVERAL):
                total += _EACH * len(each)
                stack += each
            else:
                total += each.bit_length() // 3 + 1 if isinstance(each, int) else 1
        return total
