"""Time and peak memory of each phase of a command."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..console.progress import Progress, Quiet


def peak_rss() -> int:
    """Return the peak resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass
class Phases:
    """Seconds of each phase and the process's peak memory at its end, for the report; ``progress`` shows each."""

    progress: Progress = field(default_factory=Quiet)
    done: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def __call__(self, name: str, text: str = "") -> Iterator[dict[str, Any]]:
        """Time the block, and show it as ``text``; the block may add to the yielded record."""
        record: dict[str, Any] = {"phase": name}
        started = time.perf_counter()
        with self.progress.step(text or name):
            yield record
        record["seconds"] = round(time.perf_counter() - started, 3)
        record["peak_rss_bytes"] = peak_rss()
        self.done.append(record)
