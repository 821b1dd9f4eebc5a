"""What a build leaves behind about itself: time and memory of its phases, sizes, the choice of K."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ...engines.folder.manifest import Manifest
from ..precision.calibration.ranges import describe
from ..precision.products import product_table
from ..tune.choose_k import Choice
from .compiled import Compiled
from .plans import PlanStage

if TYPE_CHECKING:
    from ..precision.calibration import Scales


def peak_rss() -> int:
    """The most memory that this process has had resident so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass
class Phases:
    """Seconds of each phase and the process's peak memory at its end, for the report."""

    done: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[dict[str, Any]]:
        record: dict[str, Any] = {"phase": name}
        started = time.perf_counter()
        yield record
        record["seconds"] = round(time.perf_counter() - started, 3)
        record["peak_rss_bytes"] = peak_rss()
        self.done.append(record)


def build_report(
    manifest: Manifest,
    phase: Phases,
    sizes: dict[str, int],
    choice: Choice | None,
    warnings: list[str],
    compiled: Sequence[Compiled],
    plans: Sequence[PlanStage],
    ranges: Scales | None = None,
    wide: str = "",
) -> dict[str, Any]:
    """What ``build_report.json`` says; ``wide`` is the type of all that is in no narrow one.

    Of plans it says what TensorRT took to build them, whenever that was.
    """
    halves = ("target", "drafter")
    report: dict[str, Any] = {
        "product_version": manifest.product_version,
        "phases": phase.done,
        "bytes": sizes,
        "graphs": {name: done.attached.path.name for name, done in zip(halves, compiled, strict=True)},
        "num_speculative_tokens": manifest.speculation.num_speculative_tokens,
        "warnings": warnings,
    }
    if wide:
        report["wide"] = wide
    if choice:
        report["choose_k"] = {"speedup": round(choice.speedup, 3), **asdict(choice)}
    if narrowed := {name: done.precision for name, done in zip(halves, compiled, strict=True) if done.precision}:
        report["precision"] = narrowed
    built = [done.facts.products for done in plans] or [(), ()]
    tables = {
        name: product_table(done.precision, products)
        for name, done, products in zip(halves, compiled, built, strict=True)
    }
    report["matmuls"] = {name: table for name, table in tables.items() if table}
    if ranges:
        report["calibration"] = describe(ranges)
    if plans:
        report["plans"] = {
            name: {"seconds": round(done.facts.seconds, 3), "peak_rss_bytes": done.facts.peak_rss_bytes}
            for name, done in zip(halves, plans, strict=True)
        }
    return report
