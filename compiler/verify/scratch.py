"""A stage store for one graph that is not kept: nothing of it is left, whatever ends the work."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..store.durable import locked, writing
from ..store.stages import StageStore

_PREFIX = ".bisect."


@contextmanager
def scratch(root: Path) -> Iterator[StageStore]:
    """Below ``root``, on whose disk there has to be room. One at a time, of all processes: each is as large as a model.

    What a process that was killed left behind is removed first.
    """
    with writing(root, 0):
        root.mkdir(parents=True, exist_ok=True)
        lock = root / "bisect.lock"
        lock.touch()
    with locked(lock):
        for left_over in root.glob(f"{_PREFIX}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=_PREFIX) as folder:
            yield StageStore(Path(folder))
