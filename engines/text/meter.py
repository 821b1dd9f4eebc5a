"""Limits of a chat template: steps, characters and processor time. A template is untrusted code."""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any, TypeVar

T = TypeVar("T")

MAX_STEPS = 1_000_000  # iterations, calls and comparisons; typical templates need some thousands
MAX_CHARACTERS = 2**22  # written or copied, plus a share for the messages themselves
COPIES = 64
MAX_SECONDS = 5.0  # processor time of this thread
MAX_COUNT = 100_000  # maximum for a number that means a length; the sandbox limits ranges to the same

_EACH = 16  # minimum size of a value inside another one, because traversing it takes time too
_SEVERAL = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)


class TemplateLimitExceeded(Exception):
    """A template exceeded its limits."""


class Meter:
    """Counts the resources of one rendering, and raises ``TemplateLimitExceeded`` beyond the limits."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, size: int) -> None:
        """Reset; ``size`` is the number of characters in the messages."""
        self._steps = MAX_STEPS
        self._most = self._left = MAX_CHARACTERS + COPIES * size
        self._until = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        """Count an iteration, a call or a comparison."""
        self._steps -= 1
        if self._steps < 0:
            raise TemplateLimitExceeded(f"the template takes more than {MAX_STEPS:,} steps")
        if self._steps % 16 == 0 and time.thread_time() > self._until:
            raise TemplateLimitExceeded(f"the template runs for more than {MAX_SECONDS:g} seconds")

    def require(self, characters: int) -> None:
        """Raise if this many more characters would exceed the limit; called before they are created."""
        if characters > self._left:
            raise TemplateLimitExceeded(f"the template creates more than {self._most:,} characters of text")

    def charge(self, characters: int) -> None:
        """Count created characters."""
        self.require(characters)
        self._left -= characters

    def count(self, value: T) -> T:
        """Count a new value and return it.

        A container counts by its own length; its whole content must be short enough to be written out.
        """
        self.step()
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, Mapping | list | tuple):
            self.charge(len(value))
            self.require(self.size(value))
        return value

    def size(self, value: Any) -> int:
        """Return the approximate length of a value as text, computed no further than the remaining limit."""
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
