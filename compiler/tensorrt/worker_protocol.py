"""JSON protocol between this process and the one that builds plans: requests, progress and results.

The process reads one request and writes one object per line: ``{"done": permille}`` or
``{"log": [severity, text]}`` while it builds, then either
``{"facts": ...}`` or ``{"error": ...}``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from ...engines.folder.records import PlanRecord, Profile
from ...engines.folder.strict_json import decode
from ...plugins import errors
from ...plugins.errors import BuildError, PeagleError, UsageError
from ...plugins.graph_contract import MIN_SIZES
from ...plugins.tensorrt.products import PRODUCTS
from ..precision.product_table import BuiltProduct

STEPS = 1000
SILENT = -1  # more severe than any level of TensorRT's log


@dataclass(frozen=True)
class PlanRequest:
    """A request to build ``graph``, a lowered ONNX file with its weights beside it, for ``gpus`` (``sm_120``).

    ``name`` is its name in messages. ``layers`` are required counts by TensorRT layer type (``KV_CACHE_UPDATE``: two
    per layer); the counts in the graph itself are always checked. ``workspace_bytes`` limits scratch memory,
    ``optimization_level`` is TensorRT's 0..5; None keeps its defaults. ``timing_cache`` is a file that is read if it
    exists and fits, and replaced afterwards. ``record`` is a file by ``graph_record``, which is read instead of the
    graph. ``tuned_on`` is the name of the GPU on which TensorRT will time kernels.
    """

    name: str
    graph: Path
    product: str
    gpus: tuple[str, ...]
    profiles: tuple[Profile, ...]
    layers: Mapping[str, int] | None = None
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    timing_cache: Path | None = None
    record: Path | None = None
    tuned_on: str = ""

    def check(self) -> None:
        """Check the values. Raises ``UsageError`` listing all invalid ones."""
        problems = (
            []
            if self.product in PRODUCTS
            else [f"the product must be one of {', '.join(PRODUCTS)}, not {self.product!r}"]
        )
        problems += [] if self.gpus else ["the request has no GPU"]
        problems += [] if self.profiles else ["the request has no profile"]
        problems += [f"profile {p.name!r}: {c}" for p in self.profiles for c in _complaints(p)]
        if self.optimization_level is not None and not 0 <= self.optimization_level <= 5:
            problems.append(f"the optimization level must be from 0 to 5, not {self.optimization_level}")
        if self.workspace_bytes is not None and self.workspace_bytes < 1:
            problems.append(f"the workspace of {self.workspace_bytes} bytes is too small")
        if problems:
            raise UsageError(
                f"the request for the {self.name} plan is invalid", why="; ".join(problems), fix="correct these values"
            )

    def to_json(self) -> str:
        """Return the request as one line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> PlanRequest:
        """Parse the result of ``to_json``."""
        content = json.loads(text)
        problems: list[str] = []
        profiles = [decode(Profile, profile, problems) for profile in content.pop("profiles")]
        cache, gpus, record = (content.pop(name) for name in ("timing_cache", "gpus", "record"))
        return cls(
            graph=Path(content.pop("graph")),
            gpus=tuple(gpus),
            profiles=tuple(profile for profile in profiles if profile is not None),
            timing_cache=Path(cache) if cache else None,
            record=Path(record) if record else None,
            **content,
        )


@dataclass(frozen=True)
class PlanFacts:
    """A finished plan: its interface, and the resources used. ``peak_rss_bytes`` covers the building process only.

    ``versions`` maps distribution names to versions. ``products`` are the matmuls with weights, as TensorRT runs them.
    """

    plan: PlanRecord
    size: int
    seconds: float
    peak_rss_bytes: int
    versions: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    products: tuple[BuiltProduct, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        record: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return record

    @classmethod
    def from_record(cls, record: Any) -> PlanFacts:
        """Parse the result of ``to_record``. Raises ``BuildError`` for anything else."""
        problems: list[str] = []
        facts = decode(cls, record, problems)
        if facts is None:
            raise BuildError(
                "the process that builds plans sent an invalid answer",
                why="; ".join(problems),
                fix="run the same command again; if the error persists, report it with this message",
            )
        return facts


@dataclass(frozen=True)
class Channel:
    """The building process's end of the connection. Thread-safe, because TensorRT calls back from several threads."""

    file: TextIO
    lock: Lock
    severity: int = SILENT

    @classmethod
    def take_stdout(cls, severity: int = SILENT) -> Channel:
        """Reserve standard output for messages, and redirect libraries' output to standard error."""
        file = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(file, Lock(), severity)

    def done(self, permille: int) -> None:
        """Report progress. TensorRT's callbacks must not raise, so a lost parent is ignored."""
        with suppress(BrokenPipeError):
            self._send({"done": permille})

    def log(self, severity: int, text: str) -> None:
        """Send a line of TensorRT's log if it is severe enough: 0 is an internal error, 4 is verbose."""
        if severity <= self.severity:
            with suppress(BrokenPipeError):
                self._send({"log": [severity, text]})

    def facts(self, facts: PlanFacts) -> None:
        """Send the result of a successful build; the last message."""
        self._send({"facts": facts.to_record()})

    def error(self, error: PeagleError) -> None:
        """Send the error of a failed build; the last message."""
        record = {"type": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}
        self._send({"error": record})

    def _send(self, message: dict[str, Any]) -> None:
        with self.lock:
            self.file.write(json.dumps(message) + "\n")


def raised(record: dict[str, str]) -> PeagleError:
    """Return the error passed to ``Channel.error``."""
    kind = getattr(errors, record["type"], BuildError)
    error: PeagleError = kind(record["what"], why=record["why"], fix=record["fix"])
    return error


def _complaints(profile: Profile) -> list[str]:
    """List the problems of a profile: each size must be three ascending numbers."""
    return [
        f"{field} {getattr(profile, field)} are not three ascending sizes of {MIN_SIZES.get(field, 1)} or more"
        for field in profile.wrong()
    ]
