"""Open the checkpoints that an engine was built from, and rebuild its recipe from the manifest."""

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
from ..precision.allowed_recipes import wide_names
from ..precision.decide_recipe import table_of, wide_of
from ..precision.precision_options import PrecisionOptions
from ..precision.recipes import MULTIPLIED, RECIPES, STORED, Recipe, patterns
from .parity import checkpoint_problem, drafter_of

_CPU = "fp32"  # ONNX Runtime computes in FP32 on a CPU


@dataclass(frozen=True)
class Origins:
    """The checkpoints of an engine, unchanged since the build."""

    target: Target
    drafter: tuple[Checkpoint, DrafterSpec] | None

    @classmethod
    def open(cls, manifest: Manifest, folder: Path) -> Origins:
        """Open the checkpoints of the engine in ``folder``.

        Raises ``EnvironmentProblem`` for a checkpoint that is missing or has changed.
        """
        for part in manifest.parts.values():
            if why := checkpoint_problem(part.origin):
                raise EnvironmentProblem(
                    why,
                    fix=f"restore {part.origin.source}, or rebuild the engine from a checkpoint that stays unchanged",
                )
        target = Target.open(Path(manifest.target.origin.source)).with_taps(manifest.shapes.taps)
        if manifest.drafter is None:
            return cls(target, None)
        drafter = drafter_of(folder, manifest.drafter)
        return cls(target, (drafter, read_head(drafter, target.spec)))


def recipe_of(manifest: Manifest, target: Checkpoint) -> Recipe:
    """Return the recipe that the manifest records, in the types of its backend.

    Raises ``EnvironmentProblem`` if this version resolves the recipe to other types.
    """
    recorded, lowering = _types(manifest.precision), lowering_named(manifest.backend.lowering)
    options = PrecisionOptions.recorded(recorded)
    recipe = table_of(options, lowering, wide_of(target, lowering)) if options.name in RECIPES else None
    if recipe is None or _comparable(recipe.record()) != _comparable(recorded):
        raise EnvironmentProblem(
            f"this version cannot reproduce the engine's recipe {recorded.get('recipe')!r}",
            why=f"the manifest records {recorded}",
            fix="verify with the version that built the engine, or rebuild the engine",
        )
    return recipe


def on_cpu(recipe: Recipe) -> Recipe:
    """Return the recipe with FP32 as its unquantized type, for a CPU."""
    if recipe.wide == _CPU:
        return recipe
    table: dict[str, Any] = {
        each.name: _CPU for each in fields(recipe) if getattr(recipe, each.name) in wide_names() and each.name != "name"
    }
    return replace(recipe, **table)


def reference_recipe() -> Recipe:
    """Return the recipe of the reference: FP32."""
    return RECIPES[_CPU]


def is_reference(precision: Mapping[str, str]) -> bool:
    """True if every type in a manifest's table is FP32."""
    return all(kind == _CPU for kind in _types(precision).values())


def _types(precision: Mapping[str, str]) -> dict[str, str]:
    """Return the types of a manifest's table, without its other entries."""
    return {name: kind for name, kind in precision.items() if name not in ("calibration", MULTIPLIED, STORED)}


def _comparable(recorded: Mapping[str, str]) -> dict[str, Any]:
    return {**recorded, "exclude": patterns(recorded)}
