"""The errors a user can meet. Each says what happened, why, and how to fix it; the CLI turns them into exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class PeagleError(Exception):
    """Base of every error this project raises on purpose.

    ``what`` happened, ``why``, and how to ``fix`` it; ``exit_code`` is the process status of the command line.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"  why: {self.why}")
        if self.fix:
            parts.append(f"  fix: {self.fix}")
        return "\n".join(parts)

    @property
    def in_a_line(self) -> str:
        """What ``str`` says, in one line, for logs and the answers of servers."""
        return "; ".join(part for part in (self.what, self.why, f"fix: {self.fix}" if self.fix else "") if part)


class UsageError(PeagleError):
    """What was asked for cannot be done with these arguments (exit code 2)."""

    exit_code = 2


class EnvironmentProblem(PeagleError):
    """This machine, installation or engine folder cannot do it (exit code 3)."""

    exit_code = 3


class VerificationError(PeagleError):
    """A check that was asked for did not hold (exit code 4)."""

    exit_code = 4


class BuildError(PeagleError):
    """The inputs cannot be turned into an engine (exit code 5)."""

    exit_code = 5


def nearest(name: str, names: Iterable[str], most: int = 3, cutoff: float = 0.6) -> list[str]:
    """The ``names`` that come near, the nearest first; ``cutoff`` is from 0 (anything) to 1 (the same)."""
    import difflib  # no error, no need of it

    return difflib.get_close_matches(name, list(names), most, cutoff=cutoff)
