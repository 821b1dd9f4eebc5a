"""``peagle-compile doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from ...plugins.errors import EnvironmentProblem
from ..console.printing import columns, emit, interruptible, size
from .shared_flags import Json

if TYPE_CHECKING:
    from ..request.doctor import Cuda
    from ..request.precision_support import PrecisionSupport


@interruptible("nothing was changed")
def doctor(as_json: Json = False) -> None:
    """Say what this machine can build and run, and why not the rest.

    Example: peagle-compile doctor
    """
    from ..request.doctor import diagnose

    report = diagnose()
    if as_json:
        emit(report.as_json())
    else:
        rows = [
            ("python", report.python),
            ("system", report.system),
            ("CPU threads", report.cpu_threads),
            ("memory", size(report.memory_bytes)),
            (
                "disk",
                f"{size(report.folder_free_bytes)} free here, {size(report.cache_free_bytes)} free for {report.cache}",
            ),
            ("GPUs", "; ".join(f"{gpu.name} (sm_{gpu.sm}, {gpu.memory})" for gpu in report.gpus) or "none found"),
            ("driver", _driver(report.cuda)),
            ("NVRTC", report.cuda.nvrtc or f"no: {report.cuda.nvrtc_problem}"),
            ("nvcc", report.cuda.nvcc or "not found; only packaging needs it"),
            ("providers", ", ".join(report.providers) or "none"),
        ]
        rows += [(name, number or "not installed") for name, number in report.packages.items()]
        if report.rtx_link:
            rows.append(("libtensorrt_rtx.so", report.rtx_link))
        for ability in report.abilities:
            rows.append((f"build {ability.backend}", _answer(ability.cannot_build, ability.precisions)))
            rows.append((f"run {ability.backend}", _answer(ability.cannot_run)))
        typer.echo(columns(rows))
    if not report.healthy:
        raise EnvironmentProblem(
            "no backend can run engines here",
            why="; ".join(ability.cannot_run for ability in report.abilities),
            fix="pip install --force-reinstall onnxruntime",
        )


def _driver(cuda: Cuda) -> str:
    newest = f"runs CUDA {cuda.driver_supports} and older" if cuda.driver_supports else ""
    return ", ".join(filter(None, (cuda.driver, newest))) or "none"


def _answer(why_not: str, precisions: Sequence[PrecisionSupport] = ()) -> str:
    if why_not:
        return f"no: {why_not}"
    return f"yes{': ' if precisions else ''}{_supported(precisions)}"


def _supported(precisions: Sequence[PrecisionSupport]) -> str:
    """The precisions that there are, those of the same GPUs together, and then why the others are not."""
    groups: dict[str, list[str]] = {}
    for each in precisions:
        if each.cannot:
            kind = f"not {{}} ({each.cannot})"
        elif each.emulated:
            kind = "{} emulated"
        else:
            kind = f"{{}} for {', '.join(each.gpus)}" if each.gpus else "{}"
        groups.setdefault(kind, []).append(each.precision)
    return "; ".join(kind.format(", ".join(names)) for kind, names in sorted(groups.items(), key=_refusals_last))


def _refusals_last(group: tuple[str, list[str]]) -> bool:
    return group[0].startswith("not ")
