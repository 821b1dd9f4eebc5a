"""The errors that users can see. Each states what happened, why, and how to fix it; the CLI maps them to exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

# The fix of an error that no input of a user should cause.
REPORT = "this is an internal error of peagle-compile: report it with the output of `peagle-compile doctor`"


class PeagleError(Exception):
    """Base class of every error this project raises on purpose.

    ``what`` happened, ``why``, and how to ``fix`` it; ``exit_code`` is the exit status of the command line.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(what)

    def __reduce__(self) -> tuple[Any, ...]:
        # The usual form calls the class with the message alone, which the subclasses with other arguments refuse: an
        # error of a worker process would then break the pool that carries it.
        return _restored, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"  why: {self.why}")
        if self.fix:
            parts.append(f"  fix: {self.fix}")
        return "\n".join(parts)

    @property
    def one_line(self) -> str:
        """Return ``str(self)`` as one line, for logs and server responses."""
        return "; ".join(part for part in (self.what, self.why, f"fix: {self.fix}" if self.fix else "") if part)


def _restored(kind: type[PeagleError], args: tuple[Any, ...]) -> PeagleError:
    """Return an error without its fields, which ``pickle`` and ``copy`` then set."""
    return kind.__new__(kind, *args)


class UsageError(PeagleError):
    """The request is invalid with these arguments (exit code 2)."""

    exit_code = 2


class EnvironmentProblem(PeagleError):
    """This machine, installation or engine folder cannot fulfil the request (exit code 3)."""

    exit_code = 3


class VerificationError(PeagleError):
    """A requested check failed (exit code 4)."""

    exit_code = 4


class BuildError(PeagleError):
    """The inputs cannot be turned into an engine (exit code 5)."""

    exit_code = 5


def nearest(name: str, names: Iterable[str], limit: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the closest ``names``, best first; ``cutoff`` ranges from 0 (anything) to 1 (identical)."""
    import difflib  # imported here because only error paths need it

    return difflib.get_close_matches(name, list(names), limit, cutoff=cutoff)
