"""Whether a build could be made on this machine: what it needs of disk, memory and packages, and what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ...plugins.errors import EnvironmentProblem
from ...plugins.optional_packages import require
from ..checkpoints.known_pairs import HubRepo
from ..checkpoints.resolve_names import known_pair, target_source
from ..console.printing import size
from ..hardware.machine import free_memory
from ..request.build_platform import BuildPlatform, platform_of
from ..request.request import CompileRequest
from ..store.atomic_files import free_bytes
from ..store.copy_file import nearest
from .dry_run import forecast_build
from .known_sizes import download_bytes
from .record import Forecast

T = TypeVar("T")
_DISK = "disk for"


@dataclass(frozen=True)
class Need:
    """One thing that a build takes, and what of it is there; ``lacks`` says what is not enough."""

    name: str
    needed_bytes: int | None
    free_bytes: int
    where: str
    lacks: str = ""


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

    The disk is counted as if nothing were downloaded or kept yet.
    """
    problems: list[EnvironmentProblem] = []
    platform = _unless_missing(problems, lambda: platform_of(request))
    forecast = _unless_missing(problems, lambda: _forecast(request, platform))
    needs = _needs(request, forecast) if forecast else ()
    lacking = [need.lacks for need in needs if need.lacks]
    told, fixes = [f"{problem.what}: {problem.why}" for problem in problems], [problem.fix for problem in problems]
    if any(need.lacks and need.name.startswith(_DISK) for need in needs):
        fixes.append("free some disk, or point PEAGLE_CACHE, HF_HOME and --out to larger ones")
    if any(need.lacks and not need.name.startswith(_DISK) for need in needs):
        fixes.append("build on a machine with more memory")
    refusal = forecast.refusal if forecast else ""
    verdict, short = _verdict(forecast)
    return Readiness(
        model=request.pair.model,
        precision=forecast.precision if forecast else request.precision.name or "",
        backend=platform.backend if platform else request.backend.name or "",
        gpus=platform.gpus if platform else request.backend.gpus,
        needs=needs,
        verdict=verdict,
        missing=tuple(filter(None, (refusal, *told, *lacking, verdict if short else ""))),
        fixes=tuple(dict.fromkeys(filter(None, fixes))),
        notes=forecast.notes if forecast else (),
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
    """Disk for the download, for kept steps and for the engine, each disk counted once; and memory."""
    disks: list[tuple[str, int | None, Path]] = [(f"{_DISK} the download", _download(request), _hub_cache())]
    if disk := forecast.disk:
        disks.append((f"{_DISK} kept steps", disk.kept_bytes, Path(disk.cache)))
        disks.append((f"{_DISK} the engine", 0 if disk.shares_blocks else disk.out_bytes, request.out.absolute()))
    peaks = {
        "memory to trace and write": forecast.host.bytes,
        "memory to calibrate": forecast.work.calibration_bytes,
        "memory to build plans": forecast.work.builder_bytes,
    }  # one after the other
    memory = [Need(name, count, free_memory(), "this machine") for name, count in peaks.items() if count]
    return *_on_disks(disks), *(_judged(need, need.needed_bytes or 0) for need in memory)


def _on_disks(disks: Iterable[tuple[str, int | None, Path]]) -> list[Need]:
    """What is written where. All that goes to one disk must have room there together."""
    taken: dict[int, int] = {}
    needs = []
    for name, count, where in disks:
        device = nearest(where).stat().st_dev
        taken[device] = taken.get(device, 0) + (count or 0)
        needs.append(_judged(Need(name, count, free_bytes(where), str(where)), taken[device]))
    return needs


def _judged(need: Need, together: int) -> Need:
    """The need with what it lacks, where it and those before it take more than is there."""
    if together <= need.free_bytes:
        return need
    before = (
        f" and {size(together - (need.needed_bytes or 0))} before it" if together > (need.needed_bytes or 0) else ""
    )
    count = size(need.needed_bytes or 0)
    lacks = f"{need.name}: {count}{before}, {size(need.free_bytes)} free ({need.where})"
    return replace(need, lacks=lacks)


def _download(request: CompileRequest) -> int | None:
    """Bytes of the target to be fetched, as if none were here yet; None where that is not known."""
    if not isinstance(target_source(request.pair.model, request.pair.revision), HubRepo):
        return 0
    pair = known_pair(request.pair.model)
    return download_bytes(pair) if pair else None


def _hub_cache() -> Path:
    """The folder that checkpoints are downloaded to, as the Hub's own library finds it."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser().absolute()


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
