"""Lowered graphs of the tiny families with their weights, as a build passes them to TensorRT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import drafter_component, target_component
from peagle.compiler.pipeline.graph_stages import MODEL
from peagle.compiler.store.stages import StageStore
from peagle.graphs.lowering import LOWERINGS
from tests.models import make_pair

CACHE = 80
Width = Literal["float16", "bfloat16"]


@dataclass(frozen=True)
class Halves:
    """The two graphs of a pair, and how many layers of attention each has."""

    graphs: dict[str, Path]
    layers: dict[str, int]


@pytest.fixture(scope="session")
def halves_of(_own_stage_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Width], Halves]:
    """The pair of a family, traced in a width and lowered for TensorRT; kept by the session's stage cache."""

    @cache
    def make(family: str, width: Width) -> Halves:
        pair = make_pair(tmp_path_factory.mktemp(family), family)
        target, head = pair.specs()
        store, graphs = StageStore.default(), {}
        for half in (
            target_component(pair.opened()),
            drafter_component(Checkpoint.open(pair.head), head, pair.opened()),
        ):
            traced = graph_stages.trace(store, half, width, Quiet())
            made = graph_stages.attach(
                store, half, traced, lowering=LOWERINGS["tensorrt"], cache_length=CACHE, progress=Quiet()
            )
            graphs[half.name] = made.attached.path / MODEL
        return Halves(graphs, {"target": len(target.caches), "drafter": len(head.caches)})

    return make
