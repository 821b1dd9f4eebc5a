"""What a build leaves behind about itself: time and memory of its phases, sizes, the choice of K, every option."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from ..engines.manifest import Manifest
from .choose_k import Choice
from .inputs import Inputs
from .options import BuildOptions


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
    manifest: Manifest, phase: Phases, sizes: dict[str, int], choice: Choice | None, warnings: list[str]
) -> dict[str, Any]:
    """What ``build_report.json`` says."""
    report: dict[str, Any] = {
        "product_version": manifest.product_version,
        "phases": phase.done,
        "bytes": sizes,
        "num_speculative_tokens": manifest.speculation.num_speculative_tokens,
        "warnings": warnings,
    }
    if choice:
        report["choose_k"] = {"speedup": round(choice.speedup, 3), **asdict(choice)}
    return report


def resolved_config(options: BuildOptions, inputs: Inputs, manifest: Manifest) -> str:
    """Every choice, enough to repeat the build. JSON, which is YAML too."""
    content = asdict(options) | {
        "out": str(options.out),
        **inputs.resolved.repeatable(),
        "num_speculative_tokens": manifest.speculation.num_speculative_tokens,
        "max_seq_len": inputs.max_seq_len,
    }
    del content["force"]
    return json.dumps(content, indent=2) + "\n"
