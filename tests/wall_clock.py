"""A clock that gives processes a jumping time of day, while their monotonic clocks continue."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from mmap import mmap
from pathlib import Path

from peagle.plugins.cpu.compile import compile_shared, find_compilers

HOUR = 3600
ONLY = "WALL_CLOCK_PROGRAM"  # in the environment: the only program whose clock is moved
_SOURCE = Path(__file__).with_suffix(".cpp")
_OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC")
_SECONDS = struct.Struct("=q")


class WallClock:
    """The time of day of the processes that run in its ``environment``; ``folder`` takes its files."""

    def __init__(self, folder: Path) -> None:
        library, seconds = folder / "wall_clock.so", folder / "wall_clock.seconds"
        library.write_bytes(
            compile_shared({_SOURCE.name: _SOURCE.read_bytes()}, _OPTIONS, find_compilers(), "the clock")[0]
        )
        seconds.write_bytes(_SECONDS.pack(0))
        with seconds.open("r+b") as file:
            self._moved = mmap(file.fileno(), _SECONDS.size)
        self._file = str(seconds)
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(seconds)}

    def processes(self) -> int:
        """Number of other processes that see it."""
        found, file = 0, os.fsencode(self._file)  # names of other files may not be UTF-8
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                found += folder.name != str(os.getpid()) and file in (folder / "maps").read_bytes()
        return found

    def move(self, seconds: int) -> None:
        """Have the processes see the time of day so many seconds from now."""
        _SECONDS.pack_into(self._moved, 0, seconds)
