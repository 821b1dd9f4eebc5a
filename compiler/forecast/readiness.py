"""Whether a build could be made on this machine: what it needs of disk, memory and packages, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from ...plugins.errors import EnvironmentProblem
from ...plugins.optional_packages import require
from ..console.printing import size
from ..hardware.memory import free_memory
from ..needs.room import HERE, Need, needs_of, refusal_of, tight
from ..request.build_platform import BuildPlatform, platform_of
from ..request.request import CompileRequest
from .download import download_need
from .dry_run import forecast_build
from .record import Forecast

T = TypeVar("T")


@dataclass(frozen=True)
class Readiness:
    """What a build of a model in a precision needs here. ``missing`` is empty where nothing is.

    ``fixes`` are for what is missing, ``notes`` what a build will say. What cannot be forecast has no ``needs``.
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
        """Whether a build can begin."""
        return not self.missing

    def as_json(self) -> dict[str, Any]:
        """Every field, and whether it is ready."""
        return asdict(self) | {"ready": self.ready}


def readiness(request: CompileRequest) -> Readiness:
    """What ``build`` of this request takes here. Raises ``UsageError`` or ``BuildError`` where no machine can build it.

    Of a download the part is counted that is not in the Hub's cache yet.
    """
    problems: list[EnvironmentProblem] = []
    platform = _unless_missing(problems, lambda: platform_of(request))
    forecast = _unless_missing(problems, lambda: _forecast(request, platform))
    needs = _needs(request, forecast) if forecast else ()
    told, fixes = [f"{problem.what}: {problem.why}" for problem in problems], [problem.fix for problem in problems]
    if lacking := refusal_of(needs):
        told.append(lacking.why)
        fixes.append(lacking.fix)
    refusal = forecast.refusal if forecast else ""
    verdict, short = _verdict(forecast)
    return Readiness(
        model=request.pair.model,
        precision=forecast.precision if forecast else request.precision.name or "",
        backend=platform.backend if platform else request.backend.name or "",
        gpus=platform.gpus if platform else request.backend.gpus,
        needs=needs,
        verdict=verdict,
        missing=tuple(filter(None, (refusal, *told, verdict if short else ""))),
        fixes=tuple(dict.fromkeys(filter(None, fixes))),
        notes=tuple(dict.fromkeys((*forecast.notes, *tight(needs)))) if forecast else (),
    )


def _unless_missing(problems: list[EnvironmentProblem], attempt: Callable[[], T]) -> T | None:
    """The result of an attempt; None where this machine lacks something, which joins ``problems``."""
    try:
        return attempt()
    except EnvironmentProblem as problem:
        problems.append(problem)
        return None


def _forecast(request: CompileRequest, platform: BuildPlatform | None) -> Forecast:
    """The forecast of the build, for the backend that this machine would choose."""
    require("export", "building")
    if platform is not None:
        request = replace(request, backend=replace(request.backend, name=platform.backend))
    return forecast_build(request)


def _needs(request: CompileRequest, forecast: Forecast) -> tuple[Need, ...]:
    """Disk for the download, for kept steps and for the engine; and memory."""
    host = Need("memory to trace and write", forecast.host.bytes, 0, "on the safe side of what was seen", HERE,
                free_memory())  # fmt: skip
    if forecast.disk is None:
        return ()
    return (*needs_of(forecast.disk, forecast.work, download_need(request.pair)), host)


def _verdict(forecast: Forecast | None) -> tuple[str, bool]:
    """What a named GPU holds, in words, and whether that is too little."""
    verdict = forecast.gpu if forecast else None
    if verdict is None:
        return "", False
    if verdict.refusal:
        return f"{verdict.gpu.name} does not run it: {verdict.refusal}", True
    if not verdict.fits:
        return f"{verdict.gpu.name} does not hold it: short by {size(verdict.short_bytes)}", True
    return f"{verdict.gpu.name} holds it, and {verdict.most_slots:,} slots", False
