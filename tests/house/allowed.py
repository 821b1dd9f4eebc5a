"""Exceptions to the house rules. The lists may only get shorter: an unneeded entry fails its rule."""

from __future__ import annotations

# Imports of a wing that is not below.
UP: frozenset[str] = frozenset()

# Folders in which a room and what lies beside it import each other.
ROOMS: frozenset[str] = frozenset()

# Short modules that only one other imports, and that are no variant of a kind.
SPLINTERS: frozenset[str] = frozenset()

# Modules that import each other.
CIRCLES: frozenset[str] = frozenset()

# Names of more than one class.
TWICE: frozenset[str] = frozenset()

# Public docstrings that begin without a subject.
FRAGMENTS: frozenset[str] = frozenset()

# Public docstrings whose first line goes on in the next.
UNFINISHED: frozenset[str] = frozenset()

# Tests of no one module that do not lie in `tests/scenarios/`, or not where their module lies.
ELSEWHERE: frozenset[str] = frozenset()
