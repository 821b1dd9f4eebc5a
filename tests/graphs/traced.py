"""A tiny pair and its semantic graphs on disk, as a build traces them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Quiet
from peagle.compiler.hardware.packages import export_versions
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import drafter_component, target_component
from peagle.compiler.pipeline.graph_stages import SEMANTIC
from peagle.compiler.store.stages import StageStore
from peagle.graphs import graph_files, stream_weights
from peagle.graphs.drafters import DrafterSpec
from peagle.graphs.drafters.torch_reference import load_target
from peagle.graphs.lowering import LOWERINGS, Lowered, lower
from peagle.graphs.targets import TargetSpec
from peagle.graphs.trace import Dtype, trace_drafter, trace_target
from tests.graphs.running import Graph
from tests.models import Pair, make_pair, save_target

CACHE = 80


@dataclass(frozen=True)
class Traced:
    """A pair and its semantic graphs on disk."""

    pair: Pair
    target: TargetSpec
    head: DrafterSpec
    folder: Path

    def lowered(self, part: str, lowering: str) -> Lowered:
        """The part's graph without weights. Several tests look at it, and none may change it."""
        return _kept_lowered(self.folder, part, lowering)

    def reference(self) -> Any:
        """The target in ``transformers``. Several tests run it, and none may change it."""
        return _kept_reference(self.pair)

    def built(self, part: str, lowering: str) -> Path:
        """The part's graph with weights, for ONNX Runtime."""
        path = self.folder / lowering / part / "model.onnx"
        if not path.exists():
            path.parent.mkdir(parents=True)
            tensors = {k: t.numpy() for k, t in self.pair.head_weights().items()}
            read = self.pair.target_weights() if part == "target" else tensors.__getitem__
            stream_weights.attach(_lowered(self.folder, part, lowering), read, path)
        return path


def _lowered(folder: Path, part: str, lowering: str) -> Lowered:
    return lower(graph_files.load(folder / f"{part}.onnx"), LOWERINGS[lowering], cache_length=CACHE)


_kept_lowered = lru_cache(maxsize=4)(_lowered)


@lru_cache(maxsize=2)
def _kept_reference(pair: Pair) -> Any:
    return load_target(pair.target, pair.config)


def semantic(pair: Pair, part: str, dtype: Dtype) -> Path:
    """One half's graph without weights, kept by the session's stage cache, which the tests of whole builds share."""
    _, head = pair.specs()
    target = pair.opened()
    half = target_component(target) if part == "target" else drafter_component(Checkpoint.open(pair.head), head, target)
    return graph_stages.trace(StageStore.default(), half, dtype, Quiet()).path / SEMANTIC


def traced_drafter(head: DrafterSpec, target: TargetSpec) -> Path:
    """The graph in float32 of a head without a checkpoint, kept as ``semantic`` keeps those with one."""

    def make(folder: Path) -> None:
        graph_files.save(trace_drafter(head, target), folder / SEMANTIC)

    key = [repr(head), repr(target), export_versions()]
    return StageStore.default().run("trace-drafter", key, make).path / SEMANTIC


def traced_pair(folder: Path, family: str, draft_vocab: int) -> Traced:
    """Write a pair to ``folder`` and trace both halves in float32."""
    pair = make_pair(folder, family, draft_vocab=draft_vocab)
    target, head = pair.specs()
    for part in ("target", "drafter"):
        shutil.copy(semantic(pair, part, "float32"), folder / f"{part}.onnx")
    return Traced(pair, target, head, folder)


def target_graph(folder: Path, config: Mapping[str, Any], lowering: str) -> tuple[Graph, Target]:
    """Write a random target with this configuration; its graph, tapped at its first layers, and the target itself."""
    whole = Target.open(save_target(folder / "target", config))
    target = whole.with_taps(range(min(2, whole.spec.num_layers)))
    target.check()
    model = trace_target(target.skeleton, target.spec)
    shapes = stream_weights.needed_weights(model)
    lowered = lower(model, LOWERINGS[lowering], cache_length=CACHE)
    stream_weights.attach(lowered, lambda name: target.read(name, shapes[name]), folder / "model.onnx")
    return Graph(folder / "model.onnx", target.spec.caches, CACHE), target
