"""Everything that is wrong with one checkpoint, so that a user fixes it once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ....plugins.errors import BuildError
from ..safetensors import shown

MOST = 20  # names of one kind, and problems with one cure


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - MOST
    return ", ".join(map(shown, names[:MOST])) + (f" and {rest} more" if rest > 0 else "")


def counted(names: Sequence[str], singular: str = "tensor") -> str:
    """``1 tensor``, ``2 tensors``."""
    return f"{len(names)} {singular}{'s' * (len(names) != 1)}"


class Problems:
    """Collects the problems of the checkpoint in ``folder``; true when there are any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: list[BuildError] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, what: str, *, why: str = "", fix: str = "") -> None:
        """One more. ``what`` names the folder or a file in it; ``fix`` is the same text for problems of one kind."""
        self._found.append(BuildError(what, why=why, fix=fix))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """What fails inside is one problem of the checkpoint, and work goes on behind it."""
        try:
            yield
        except BuildError as error:
            self._found.append(error)

    def raise_any(self) -> None:
        """One problem is raised as it is, several as one ``BuildError`` that lists them."""
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            cures: dict[str, list[BuildError]] = {}
            for error in self._found:
                cures.setdefault(error.fix, []).append(error)
            raise BuildError(
                f"{self.folder} cannot be used ({len(self._found)} problems):\n"
                + "\n".join(line for found in cures.values() for line in _lines(found)),
                fix="; ".join(filter(None, cures)),
            )


def _lines(errors: Sequence[BuildError]) -> list[str]:
    lines = [f"    - {error.what}" + (f" ({error.why})" if error.why else "") for error in errors[:MOST]]
    return lines + ([f"    - and {len(errors) - MOST} more like these"] if len(errors) > MOST else [])
