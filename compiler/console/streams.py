"""Setup of the standard streams: always open, and silent when their reader is gone."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO, cast

from ...plugins.errors import EnvironmentProblem

_NAMES = ("standard input", "standard output", "standard error")


class _Descriptor(io.FileIO):
    """An output stream that drops data once its reader is gone.

    A closed reader (``| head``) is not an error. Other write errors are raised once for standard output and ignored for
    standard error.
    """

    has_lost_reader = False

    def write(self, data: object) -> int:
        """Write ``data``, or drop it if the stream is lost."""
        if not self.has_lost_reader:
            try:
                return super().write(cast("bytes", data))
            except OSError as error:
                self.has_lost_reader = True
                if self.fileno() == 1 and not isinstance(error, BrokenPipeError):
                    raise EnvironmentProblem(
                        f"cannot write to {_NAMES[self.fileno()]}",
                        why=error.strerror or str(error),
                        fix="redirect it to a file on a disk with free space, or check the terminal",
                    ) from None
        return len(memoryview(cast("bytes", data)).cast("B"))


def prepare() -> None:
    """Open closed standard streams on the null device, and handle lost readers and full disks uniformly.

    Otherwise the next opened file would take the descriptor of standard output and receive what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)  # takes the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _safe(1, sys.stdout), _safe(2, sys.stderr)


def is_reader_closed() -> bool:
    """Return True if standard output has lost its reader, so that the program may stop."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Descriptor) and raw.has_lost_reader


def _safe(number: int, was: TextIO | None) -> TextIO:
    """Wrap standard output or error with the settings it had; characters outside its encoding are escaped."""
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
