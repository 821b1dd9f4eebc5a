"""What an engine was made from, opened again: its checkpoints, its recipe, the ranges of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import Manifest
from ...graphs.drafters import DrafterSpec
from ...graphs.lowering import lowering_named
from ...plugins.errors import EnvironmentProblem
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import read_head
from ..precision.decide_recipe import table_of, wide_of
from ..precision.precision_options import PrecisionOptions
from ..precision.recipes import DTYPES, MULTIPLIED, RECIPES, STORED, Recipe, patterns
from .parity import drafter_of, gone

_CPU = "fp32"  # what ONNX Runtime computes in on a CPU


@dataclass(frozen=True)
class Origins:
    """The checkpoints of an engine, unchanged since the build, and what they hold."""

    target: Target
    drafter: tuple[Checkpoint, DrafterSpec] | None

    @classmethod
    def open(cls, manifest: Manifest, folder: Path) -> Origins:
        """Open those of the engine in ``folder``.

        Raises ``EnvironmentProblem`` for a checkpoint that is gone or was changed.
        """
        for part in manifest.parts.values():
            if why := gone(part.origin):
                raise EnvironmentProblem(why, fix="build the engine again from a checkpoint that stays")
        target = Target.open(Path(manifest.target.origin.source)).with_taps(manifest.shapes.taps)
        if manifest.drafter is None:
            return cls(target, None)
        drafter = drafter_of(folder, manifest.drafter)
        return cls(target, (drafter, read_head(drafter, target.spec)))


def recipe_of(manifest: Manifest, target: Checkpoint) -> Recipe:
    """The recipe that the manifest records, in the types of its backend.

    Raises ``EnvironmentProblem`` where this version makes another table of it.
    """
    recorded, lowering = _types(manifest.precision), lowering_named(manifest.backend.lowering)
    asked = PrecisionOptions.recorded(recorded)
    recipe = table_of(asked, lowering, wide_of(target, lowering)) if asked.name in RECIPES else None
    if recipe is None or _comparable(recipe.record()) != _comparable(recorded):
        raise EnvironmentProblem(
            f"this version has no recipe {recorded.get('recipe')!r} that comes to what the engine was built with",
            why=f"its manifest records {recorded}",
            fix="verify with the version that built it, or build it again",
        )
    return recipe


def on_cpu(recipe: Recipe) -> Recipe:
    """The recipe with the same quantized types over FP32, which a CPU computes in."""
    if recipe.wide == _CPU:
        return recipe
    table: dict[str, Any] = {
        each.name: _CPU for each in fields(recipe) if getattr(recipe, each.name) in DTYPES and each.name != "name"
    }
    return replace(recipe, **table)


def reference_recipe() -> Recipe:
    """The recipe that every precision is measured against: FP32."""
    return RECIPES[_CPU]


def is_reference(precision: Mapping[str, str]) -> bool:
    """Whether a manifest's table has nothing that could lose anything."""
    return all(kind == _CPU for kind in _types(precision).values())


def _types(precision: Mapping[str, str]) -> dict[str, str]:
    """The types of a manifest's table, without where ranges come from and what is said apart from it."""
    return {name: kind for name, kind in precision.items() if name not in ("calibration", MULTIPLIED, STORED)}


def _comparable(recorded: Mapping[str, str]) -> dict[str, Any]:
    return {**recorded, "exclude": patterns(recorded)}
