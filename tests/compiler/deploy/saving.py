"""Deployments of an engine while another command saves its results: these are stored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from peagle.compiler.console.progress import Advance
from peagle.compiler.verify import Verification, verify_engine
from peagle.engines.folder.manifest import Manifest


class Saving:
    """Progress that saves results of ``verify`` in the engine when one of its steps advances; they must wait."""

    def __init__(self, engine: Path, during: str) -> None:
        self._engine, self._during = engine, during
        self._saved: Future[Verification] | None = None

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        del total
        yield self._save if text == self._during else lambda _: None

    def _save(self, _: int) -> None:
        if self._saved is None:
            read = Manifest.read(self._engine)
            with_results = Verification(str(self._engine), "1")
            self._threads = ThreadPoolExecutor(1)
            self._saved = self._threads.submit(verify_engine._save, self._engine, read, with_results)
            with pytest.raises(TimeoutError):
                self._saved.result(0.5)

    def finish(self) -> None:
        """Wait until the results are stored."""
        assert self._saved is not None, f"no step {self._during!r}"
        self._saved.result(30)
        self._threads.shutdown()
