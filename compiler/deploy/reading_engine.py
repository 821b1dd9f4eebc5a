"""Reading of an engine for minutes: no other command changes it in the meantime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...engines.folder.manifest import Manifest
from ..console.progress import Progress
from ..store.atomic_files import writing
from ..store.locks import locked_for_reading


@contextmanager
def reading(engine: Path, progress: Progress) -> Iterator[Manifest]:
    """Wait for running changes of an engine, lock it against further ones, and yield its manifest.

    Raises ``EnvironmentProblem`` if it is not an engine.
    """
    Manifest.read(engine)
    with ExitStack() as until_the_end:
        with writing(engine, 0):
            until_the_end.enter_context(locked_for_reading(Path(os.path.realpath(engine)), progress))
        yield Manifest.read(engine)
