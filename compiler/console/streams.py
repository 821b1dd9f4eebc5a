"""The standard streams as every verb finds them: open, in order, and without a word when their reader has gone."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO, cast

from ...plugins.errors import EnvironmentProblem

_NAMES = ("standard input", "standard output", "standard error")


class _Descriptor(io.FileIO):
    """A stream that can be written to as long as somebody reads it, and drops the rest.

    That the reader has gone (``| head``) is no error. Another one is raised once for standard output, whose content
    is what was asked for; standard error must not be what fails.
    """

    lost = False

    def write(self, data: object) -> int:
        """Write what can be written."""
        if not self.lost:
            try:
                return super().write(cast("bytes", data))
            except OSError as error:
                self.lost = True
                if self.fileno() == 1 and not isinstance(error, BrokenPipeError):
                    raise EnvironmentProblem(
                        f"cannot write to {_NAMES[self.fileno()]}",
                        why=error.strerror or str(error),
                        fix="have it read, or send it to a disk with room",
                    ) from None
        return len(memoryview(cast("bytes", data)).cast("B"))


def prepare() -> None:
    """Open those that the caller closed on the null device, and have lost readers and full disks told in one way.

    Else the next file that is opened would become standard output, and get what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)  # the lowest that is free, so this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _safe(1, sys.stdout), _safe(2, sys.stderr)


def reader_has_gone() -> bool:
    """Whether nobody reads standard output any more: what only writes there may stop."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Descriptor) and raw.lost


def _safe(number: int, was: TextIO | None) -> TextIO:
    """Wrap standard output or error as it ``was`` set up; a character that its encoding lacks is escaped."""
    if was is not None:
        if isinstance(getattr(getattr(was, "buffer", None), "raw", None), _Descriptor):
            return was
        was.flush()
    raw = _Descriptor(number, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=was.encoding if was else None,
        errors="backslashreplace",
        line_buffering=number == 2 or raw.isatty(),
        write_through=getattr(was, "write_through", False),
    )
