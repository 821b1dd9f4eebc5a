"""``peagle-compile doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ...plugins.errors import EnvironmentProblem
from ..console.printing import columns, emit, interruptible, size
from .common import Json

if TYPE_CHECKING:
    from ..request.doctor import Cuda


@interruptible("nothing was changed")
def doctor(as_json: Json = False) -> None:
    """Say what this machine can build and run, and why not the rest.

    Example: peagle-compile doctor
    """
    from ..request.doctor import diagnose

    found = diagnose()
    if as_json:
        emit(found.as_json())
    else:
        rows = [
            ("python", found.python),
            ("system", found.system),
            ("CPU threads", found.cpu_threads),
            ("memory", size(found.memory_bytes)),
            (
                "disk",
                f"{size(found.folder_free_bytes)} free here, {size(found.cache_free_bytes)} free for {found.cache}",
            ),
            ("GPUs", "; ".join(f"{gpu.name} (sm_{gpu.sm}, {gpu.memory})" for gpu in found.gpus) or "none found"),
            ("driver", _driver(found.cuda)),
            ("NVRTC", found.cuda.nvrtc or f"no: {found.cuda.nvrtc_problem}"),
            ("nvcc", found.cuda.nvcc or "not found; only packaging needs it"),
            ("providers", ", ".join(found.providers) or "none"),
        ]
        rows += [(name, number or "not installed") for name, number in found.packages.items()]
        if found.rtx_link:
            rows.append(("libtensorrt_rtx.so", found.rtx_link))
        for ability in found.abilities:
            rows.append((f"build {ability.backend}", _answer(ability.cannot_build, ability.scope)))
            rows.append((f"run {ability.backend}", _answer(ability.cannot_run)))
        typer.echo(columns(rows))
    if not found.healthy:
        raise EnvironmentProblem(
            "no backend can run engines here",
            why="; ".join(ability.cannot_run for ability in found.abilities),
            fix="pip install --force-reinstall onnxruntime",
        )


def _driver(cuda: Cuda) -> str:
    newest = f"runs CUDA {cuda.driver_supports} and older" if cuda.driver_supports else ""
    return ", ".join(filter(None, (cuda.driver, newest))) or "none"


def _answer(why_not: str, scope: str = "") -> str:
    return f"no: {why_not}" if why_not else f"yes ({scope})" if scope else "yes"
