"""Collect several problems and report them in one error, so that a user can fix all of them at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path

from .errors import BuildError

MAX = 20  # limit for names of one kind, and for problems with the same fix
_SHOWN = 240


def shown(name: str) -> str:
    """Return a name from a file in printable form: one line, no control characters, limited length."""
    text = name if name.isprintable() and name else ascii(name)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def listed(items: Iterable[str], limit: int = MAX, separator: str = ", ") -> str:
    """Join the first items, and add the number of omitted ones."""
    every = list(items)
    more = f"{separator.rstrip(', ')} and {len(every) - limit} more" if len(every) > limit else ""
    return separator.join(map(shown, every[:limit])) + more


def counted(items: Sized | int, singular: str = "tensor") -> str:
    """Return a count, or the number of items, with its noun: ``1 tensor``, ``2 tensors``."""
    count = items if isinstance(items, int) else len(items)
    return f"{count} {singular}{'s' * (count != 1)}"


def lack_of(folder: Path, *names: str) -> str:
    """Return why a path is not the folder of a kind, which one of the files ``names`` marks."""
    if not os.path.lexists(folder):
        return "the folder does not exist"
    if not os.path.isdir(folder):
        return "it is not a folder"
    return f"the folder contains no {' or '.join((', '.join(names[:-1]), names[-1]) if names[1:] else names)}"


class Problems:
    """Collects the problems of one ``subject``, a folder or its name; true if there are any.

    With a common ``fix`` (and ``why``), each problem is one line of a single error. Without, each problem has its own.
    Both can be refined when more is known.
    """

    def __init__(self, subject: object, message: str, *, why: str = "", fix: str = "") -> None:
        self.subject, self._complaint, self._why, self.fix = subject, message, why, fix
        self._errors: list[BuildError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, what: str, *, why: str = "", fix: str = "") -> None:
        """Record a problem; duplicates count once. ``fix`` must be identical for problems of the same kind."""
        if not any((error.what, error.why, error.fix) == (what, why, fix) for error in self._errors):
            self._errors.append(BuildError(what, why=why, fix=fix))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Record an error raised inside the block as a problem, and continue after the block."""
        try:
            yield
        except BuildError as error:
            self._errors.append(error)

    def raise_any(self) -> None:
        """Raise one ``BuildError`` that lists all problems, if any; a single one with its own fix as it is."""
        if len(self._errors) == 1 and not self.fix:
            raise self._errors[0]
        if self._errors:
            cures: dict[str, list[BuildError]] = {}
            for error in self._errors:
                cures.setdefault(error.fix, []).append(error)
            limit = len(self._errors) if self.fix else MAX
            raise BuildError(
                f"{self.subject} {self._complaint} ({counted(self._errors, 'problem')}):\n"
                + "\n".join(line for errors in cures.values() for line in _lines(errors, limit)),
                why=self._why,
                fix=self.fix or "; ".join(filter(None, cures)),
            )


def _lines(errors: Sequence[BuildError], limit: int) -> list[str]:
    lines = [f"    - {error.what}" + (f" ({error.why})" if error.why else "") for error in errors[:limit]]
    return lines + ([f"    - and {len(errors) - limit} more of this kind"] if len(errors) > limit else [])
