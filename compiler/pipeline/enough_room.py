"""The disk and the memory that a run takes, held against this machine before anything is made of what was read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..needs.room import require_room
from ..request.request import CompileRequest
from ..store.copy_file import nearest
from ..store.killed_stages import clear_killed
from ..store.leftovers import clear_leftovers
from ..store.made_for import MadeFor
from .shared_steps import Blueprint, PipelineRun

if TYPE_CHECKING:
    from ..needs.room import Need


def require_room_for(
    run: PipelineRun, request: CompileRequest, blueprint: Blueprint, product: str | None = None, *,
    is_moved: bool = False,
) -> list[str]:  # fmt: skip
    """Refuse graphs, and plans of a TensorRT ``product``, that certainly have no room; return what to tell.

    ``is_moved``: what is made leaves the cache. What is refused for another reason is refused for that.
    """
    from ..needs.room import needs_of
    from ..needs.wanted import Wanted, calibration_of, of_checkpoint

    blueprint.require_multiplied()
    target, recipe, lowering = blueprint.target, blueprint.recipe, blueprint.lowering
    calibration = calibration_of(request.calibration, target.family.text(target.config))
    head = blueprint.drafter[1] if blueprint.drafter else None
    wanted = Wanted(target.skeleton.weights, recipe, lowering, head, blueprint.shared, product=product,
                    calibration=calibration)  # fmt: skip
    wanted = of_checkpoint(wanted, target)
    _tidy(run, request.out)
    made_for = run.store.made_for or MadeFor("", request.pair.model, "", recipe.name, lowering.name)
    disk = wanted.disk(run.store, request.out, made_for, is_moved=is_moved)
    return require_room(needs_of(disk, wanted.work), ignored=request.ignore_limits)


def require_room_of(run: PipelineRun, request: CompileRequest, needs: tuple[Need, ...]) -> list[str]:
    """The same of needs that were worked out."""
    _tidy(run, request.out)
    return require_room(needs, ignored=request.ignore_limits)


def _tidy(run: PipelineRun, out: Path) -> None:
    """Remove what killed runs left, before it is said that there is no room."""
    clear_killed(run.store.root)
    clear_leftovers(nearest(Path(os.path.abspath(out)).parent))
