"""The facts of a target's skeleton, kept between builds: deriving them imports torch and transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...graphs.targets.range_shapes import RangeShapes
from ...graphs.targets.skeleton import SkeletonFacts
from ...graphs.targets.weight_roles import RoledWeight
from ..checkpoints.target import Target
from ..store.stage_origin import StageOrigin
from ..store.stages import StageStore

_FILE = "skeleton.json"
_LIBRARIES = ("torch", "transformers")


def with_kept_skeleton(target: Target, store: StageStore, model: str) -> Target:
    """Return the target with the facts that an earlier build derived from the same configuration.

    The facts are kept in ``store``, labelled with the name of the ``model``. Raises ``BuildError`` for a configuration
    that describes no model.
    """

    def make(folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps(asdict(target.skeleton.facts)))

    key = [target.config, {library: version(library) for library in _LIBRARIES}]
    stage = replace(store, stage_origin=StageOrigin("build", model)).run("skeleton", key, make)
    if not stage.reused:
        return target  # its modules exist, and tracing needs them
    facts = _read(json.loads((stage.path / _FILE).read_bytes()))
    return replace(target, skeleton=target.skeleton.with_facts(facts))


def _read(content: Mapping[str, Any]) -> SkeletonFacts:
    weights = tuple(RoledWeight(**each | {"shape": tuple(each["shape"])}) for each in content["weights"])
    ranges = {
        group: {name: tuple(shape) for name, shape in shapes.items()}
        for group, shapes in content["range_shapes"].items()
    }
    return SkeletonFacts(weights, RangeShapes(**ranges))
