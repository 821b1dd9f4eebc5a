"""``peagle-compile doctor``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from ...plugins.errors import EnvironmentProblem
from ..console import columns, emit, interruptible, size
from .common import Json


@interruptible("nothing was changed")
def doctor(as_json: Json = False) -> None:
    """Say what this machine can build and run, and why not the rest.

    Example: peagle-compile doctor
    """
    from ..doctor import diagnose

    found = diagnose()
    if as_json:
        emit(asdict(found) | {"healthy": found.healthy})
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
            ("GPUs", "; ".join(found.gpus) or "none found"),
            ("providers", ", ".join(found.providers) or "none"),
        ]
        rows += [(name, number or "not installed") for name, number in found.packages.items()]
        for ability in found.abilities:
            rows.append((f"build {ability.backend}", _answer(ability.cannot_build)))
            rows.append((f"run {ability.backend}", _answer(ability.cannot_run)))
        typer.echo(columns(rows))
    if not found.healthy:
        raise EnvironmentProblem(
            "no backend can run engines here",
            why="; ".join(ability.cannot_run for ability in found.abilities),
            fix="pip install --force-reinstall onnxruntime",
        )


def _answer(why_not: str) -> str:
    return f"no: {why_not}" if why_not else "yes"
