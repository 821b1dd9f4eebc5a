"""What a build leaves behind about itself: time and memory of its phases, sizes, the choice of K, every option."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from ..engines.manifest import Manifest
from .choose_k import Choice
from .inputs import Inputs
from .options import BuildOptions
from .parts import Compiled
from .plan_stages import PlanStage
from .settle import DEFAULT_BATCH_SIZE, Settled


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
) -> dict[str, Any]:
    """What ``build_report.json`` says. Of plans it says what TensorRT took to build them, whenever that was."""
    halves = ("target", "drafter")
    report: dict[str, Any] = {
        "product_version": manifest.product_version,
        "phases": phase.done,
        "bytes": sizes,
        "graphs": {name: done.attached.path.name for name, done in zip(halves, compiled, strict=True)},
        "num_speculative_tokens": manifest.speculation.num_speculative_tokens,
        "warnings": warnings,
    }
    if choice:
        report["choose_k"] = {"speedup": round(choice.speedup, 3), **asdict(choice)}
    if narrowed := {name: done.precision for name, done in zip(halves, compiled, strict=True) if done.precision}:
        report["precision"] = narrowed
    if plans:
        report["plans"] = {
            name: {"seconds": round(done.facts.seconds, 3), "peak_rss_bytes": done.facts.peak_rss_bytes}
            for name, done in zip(halves, plans, strict=True)
        }
    return report


def resolved_config(options: BuildOptions, settled: Settled, inputs: Inputs, manifest: Manifest) -> str:
    """Every choice, enough to repeat the build. JSON, which is YAML too."""
    tensorrt = settled.makes_plans
    content = asdict(options) | {
        "out": str(options.out),
        **inputs.resolved.repeatable(),
        "num_speculative_tokens": manifest.speculation.num_speculative_tokens,
        "max_seq_len": inputs.max_seq_len,
        "backend": settled.backend,
        "lowering": None if tensorrt else settled.lowering,
        "gpus": settled.gpus,
        "max_batch_size": (options.max_batch_size or DEFAULT_BATCH_SIZE) if tensorrt else None,
    }
    del content["force"]
    return json.dumps(content, indent=2) + "\n"
