"""Output of the command line: results on standard output, everything else on standard error."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from ...plugins.errors import PeagleError, UsageError
from . import interrupts

P = ParamSpec("P")
R = TypeVar("R")

TRACEBACK = "PEAGLE_TRACEBACK"
RESUMABLE = "nothing was published; finished steps are cached, and the same command resumes from them"


class Interrupted(PeagleError):
    """Ctrl-C (exit code 130, the convention of shells)."""

    exit_code = 130


_left: list[str] = []  # the state that a stop leaves behind, set by the running verb


def interruptible(activity: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Turn Ctrl-C in a verb into an ``Interrupted`` error that describes ``activity`` is left behind."""

    def wrap(verb: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(verb)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            _left[:] = [activity]
            try:
                return _unless_interrupted(verb, *args, **kwargs)
            except KeyboardInterrupt:
                raise Interrupted("interrupted", why=activity) from None

        return guarded

    return wrap


def _unless_interrupted(verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a verb; an error after an interruption is attributed to the interruption."""
    try:
        return verb(*args, **kwargs)
    except Exception:
        interrupts.check()
        raise


def report_stop(number: int, *, as_json: bool) -> int:
    """Report that a signal ended the program and return the exit code."""
    if number == signal.SIGINT:
        report_failure(Interrupted("interrupted", why="".join(_left)), as_json=as_json)
    else:
        report_failure(PeagleError(f"ended by {signal.Signals(number).name}"), as_json=as_json)
    return 128 + number


def emit(result: Any) -> None:
    """Print one JSON value on standard output."""
    print(json.dumps(result, indent=2))


def note(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr)
    if "logging" in sys.modules:  # else there is no log
        from .logbook import shown

        shown(text)


def columns(rows: Iterable[Sequence[object]]) -> str:
    """Format rows as aligned text."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def report_failure(error: BaseException, *, as_json: bool) -> int:
    """Report an error on standard error, without a traceback, and return the exit code."""
    if os.environ.get(TRACEBACK):
        import traceback

        traceback.print_exception(error)
    failure = error if isinstance(error, PeagleError) else _known(error) or _unexpected(error)
    if as_json:
        fields = {"type": _kind(failure), "what": failure.what, "why": failure.why, "fix": failure.fix}
        note(json.dumps({"error": fields | {"exit_code": failure.exit_code}}))
    else:
        note(f"error: {_shown(str(failure))}")
    return failure.exit_code


def _shown(text: str) -> str:
    """Escape control characters, which a file name or a file's content can bring into a message."""
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def _kind(failure: PeagleError) -> str:
    """Return the name of the public error class, even if a subclass was raised."""
    return next(each.__name__ for each in type(failure).__mro__ if each.__module__ == PeagleError.__module__)


def _known(error: BaseException) -> PeagleError | None:
    """Return the error for a missing optional package; None for any other exception."""
    if isinstance(error, ImportError):
        from ...plugins.optional_packages import typed

        return typed(error)
    return None


def _unexpected(error: BaseException) -> PeagleError:
    if hasattr(error, "format_message"):  # the argument parser's own errors
        return UsageError(error.format_message(), fix="see `peagle-compile --help`, or `peagle-compile COMMAND --help`")
    text = " ".join(str(error).split())
    return PeagleError(
        f"unexpected {type(error).__name__}: {text}",
        why="this is an internal error of peagle-compile",
        fix=f"set {TRACEBACK}=1 to see the traceback, and report it",
    )
