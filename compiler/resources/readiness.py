"""Readiness of this machine for a build: needed disk, memory and packages, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from ...plugins.errors import EnvironmentProblem
from ..console.printing import size
from ..request.build_platform import platform_of
from ..request.request import CompileRequest
from .check import Need, possible_shortages, refusal_of, tracing_needs
from .dry_run import estimate_build
from .estimate import Estimate

T = TypeVar("T")


@dataclass(frozen=True)
class Readiness:
    """The needs of a build of a model in a precision, and what is ``missing`` here.

    ``fixes`` are for what is missing, ``notes`` are warnings of the build. ``needs`` is empty if there is no estimate.
    """

    model: str
    precision: str
    backend: str
    gpus: tuple[str, ...]
    needs: tuple[Need, ...]
    verdict: str
    missing: tuple[str, ...]
    fixes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """True if a build can start."""
        return not self.missing

    def as_json(self) -> dict[str, Any]:
        """Return every field and ``ready``."""
        return asdict(self) | {"ready": self.ready}


def readiness(request: CompileRequest) -> Readiness:
    """Check a build of this request. Raises ``UsageError`` or ``BuildError`` if no machine can build it.

    A download counts without the part that is in the Hub's cache already.
    """
    problems: list[EnvironmentProblem] = []
    platform = _unless_missing(problems, lambda: platform_of(request))
    backend = replace(request.backend, name=platform.backend) if platform else request.backend
    found = _unless_missing(problems, lambda: estimate_build(replace(request, backend=backend)))
    needs = (*found.needs, *tracing_needs(found.host.bytes)) if found else ()
    if shortage := refusal_of(needs):
        problems.append(shortage)
    verdict, short = fit_of(found)
    refusal = found.refusal if found else ""
    reasons = [problem.why if problem is shortage else f"{problem.what}: {problem.why}" for problem in problems]
    return Readiness(
        model=request.pair.model,
        precision=found.precision if found else request.precision.name or "",
        backend=platform.backend if platform else request.backend.name or "",
        gpus=platform.gpus if platform else request.backend.gpus,
        needs=needs,
        verdict=verdict,
        missing=tuple(filter(None, (refusal, *reasons, verdict if short else ""))),
        fixes=tuple(dict.fromkeys(filter(None, (problem.fix for problem in problems)))),
        notes=tuple(dict.fromkeys((*found.notes, *possible_shortages(needs)))) if found else (),
    )


def _unless_missing(problems: list[EnvironmentProblem], attempt: Callable[[], T]) -> T | None:
    """Return the result of an attempt; on ``EnvironmentProblem``, add it to ``problems`` and return None."""
    try:
        return attempt()
    except EnvironmentProblem as problem:
        problems.append(problem)
        return None


def fit_of(found: Estimate | None) -> tuple[str, bool]:
    """Describe the fit into a named GPU, and return True if it does not fit."""
    if found is None or (verdict := found.gpu) is None:
        return "", False
    if verdict.refusal:
        return f"{verdict.gpu.name} cannot run the engine: {verdict.refusal}", True
    if not verdict.most_slots:  # an engine can be loaded with fewer slots than it was built for
        short = verdict.short_bytes - (verdict.slots - 1) * verdict.slot_bytes
        return f"the engine does not fit {verdict.gpu.name}: short by {size(short)}", True
    return f"the engine fits {verdict.gpu.name}, with {verdict.most_slots:,} slots", False
