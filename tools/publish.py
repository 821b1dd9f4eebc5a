"""Replace the files of a model folder one by one, each atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from peagle.compiler.hardware.machine import processor_name

# The demo pair is in version control, so its files must stay small enough to commit.
MAX_FILE_BYTES = 8_000_000


def publish(folder: Path, write: Callable[[Path], object], limit: int = MAX_FILE_BYTES) -> None:
    """Let `write` fill a temporary folder, then move each file into `folder`; every file must be below `limit` bytes.

    A reader never finds a partial or missing file; files that `write` did not create stay unchanged.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
        fresh = Path(name)
        write(fresh)
        files = sorted(path for path in fresh.iterdir() if path.is_file())
        for path in files:
            if path.stat().st_size >= limit:
                raise SystemExit(f"{path.name} has {path.stat().st_size:,} bytes; the limit is {limit:,}")
        folder.mkdir(exist_ok=True)
        for path in files:
            path.chmod(0o644)
            os.replace(path, folder / path.name)


def processor() -> str:
    """Return the CPU's name for a card, e.g. "Intel(R) Xeon(R) Processor, 2 cores"."""
    return f"{processor_name()}, {os.cpu_count()} cores"
