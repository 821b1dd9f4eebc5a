"""Trace a half once, then lower it and attach its weights, each as a kept stage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.folder.checks import ADDED_SUFFIX
from ...engines.folder.records import FileEntry
from ..console.progress import Progress
from ..console.progress_lines import Bytes
from ..hardware.packages import export_versions
from ..store.following_hash import FollowingHash
from ..store.stages import Stage, StageStore
from .component import Component
from .streamed_weights import StreamedWeights

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.stored_embedding import StoredEmbedding
    from ...graphs.trace import Dtype

SEMANTIC = "semantic.onnx"


@dataclass(frozen=True)
class GraphFiles:
    """File names of a component, and its folder in an engine; None is the component's own."""

    model: str = "model.onnx"
    semantic: str = SEMANTIC
    precision: str = "precision.json"
    folder: str | None = None


ALONE = GraphFiles()
# A graph that reads weights of the target lies beside it: ONNX graphs cannot refer to files outside of their folder.
BESIDE_TARGET = GraphFiles("drafter.onnx", "drafter.semantic.onnx", "drafter.precision.json", "target")
MODEL = ALONE.model


def beside_target(drafter: str) -> GraphFiles:
    """Return the file names of an added drafter that reads weights of the target."""
    name = f"{drafter}{ADDED_SUFFIX}"
    return GraphFiles(f"{name}.onnx", f"{name}.semantic.onnx", f"{name}.precision.json", BESIDE_TARGET.folder)


@dataclass(frozen=True)
class TargetsEmbedding:
    """The embedding in the target's file, for a drafter that has none of its own.

    ``key`` identifies the target's graph. ``files`` are the drafter's files, which are placed in the folder of the
    target's graph.
    """

    stored: StoredEmbedding
    key: str
    files: GraphFiles = BESIDE_TARGET

    @classmethod
    def of(cls, semantic: Path, key: str, files: GraphFiles = BESIDE_TARGET) -> TargetsEmbedding | None:
        """Read the target's semantic graph. None if it has the embedding in a form that cannot be shared."""
        from ...graphs.graph_files import load
        from ...graphs.stored_embedding import stored_embedding

        stored = stored_embedding(load(semantic))
        return cls(stored, key, files) if stored else None


@dataclass(frozen=True)
class Compiled:
    """The runnable graph of a component and its I/O contract; ``traced`` and ``attached`` are its stages.

    ``precision`` is the proof of ``compiler.precision`` for a graph with quantized weights. ``files`` are relative to
    the stage, and to ``folder`` in an engine. ``shared_bytes`` counts weights that only the target's file holds.
    """

    traced: Stage
    attached: Stage
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: Mapping[str, Any] | None = None
    files: GraphFiles = ALONE
    shared_bytes: int = 0

    def embedding(self) -> TargetsEmbedding | None:
        """Return the embedding of this target's graph, for its drafter."""
        return TargetsEmbedding.of(self.attached.path / self.files.semantic, self.attached.path.name)


def trace(store: StageStore, component: Component, dtype: Dtype, progress: Progress) -> Stage:
    """Return the component's semantic graph, without weights; ``dtype`` is the type of weights, caches and features."""

    def make(folder: Path) -> None:
        with progress.step("import torch"):
            import torch  # noqa: F401

            from ...graphs.graph_files import save

        save(component.trace(dtype), folder / SEMANTIC)

    with progress.step(f"trace {component.name}"):
        return store.run(f"trace-{component.name}", [component.facts, dtype, export_versions()], make)


def attach(
    store: StageStore,
    component: Component,
    traced: Stage,
    *,
    lowering: Lowering,
    cache_length: int,
    progress: Progress,
    embedding: TargetsEmbedding | None = None,
) -> Compiled:
    """Return the component's graph, lowered for its backend, with its weights.

    A drafter that shares the target's ``embedding`` reads it from the target's file, and is placed in the same folder.
    """
    shared = embedding.stored if embedding else None
    files = embedding.files if embedding else ALONE
    key: list[Any] = [traced.path.name, lowering.name, cache_length, *(each.fingerprint for each in component.sources)]
    key += [component.quantized.key] if component.quantized else []
    key += [asdict(component.caches)] if component.caches else []
    if embedding:
        key += [embedding.key]
        key += [files.model] if files != BESIDE_TARGET else []

    def make(folder: Path) -> Mapping[str, FileEntry]:
        from ...graphs.graph_files import load, save
        from ...graphs.lowering import lower
        from ...graphs.stream_weights import attach as stream
        from ...graphs.stream_weights import data_file, leave, refer
        from ..store.atomic_files import require_space, writing

        semantic = load(traced.path / SEMANTIC)
        weights = StreamedWeights.rewrite(semantic, component, lowering, shared)
        lowered = lower(semantic.clone(), lowering, cache_length=cache_length)
        if weights.quantized:
            weights.quantized.prove(lowered, lowering, weights.cuts)
        lowered = leave(lowered, weights.stored)
        if lowering.join:
            lowering.join(lowered.model)
        require_space(store.root, lowered.total_bytes)
        step = progress.step(f"attach {component.name} weights", Bytes(lowered.total_bytes))
        with writing(store.root, lowered.total_bytes), step as advance:
            model = folder / files.model
            data = data_file(model)
            with FollowingHash(data) as following:
                runs = stream(lowered, weights.read, model, advance, weights.position, weights.cuts, following.reach)
        for source in component.sources:
            source.require_unchanged()
        refer(semantic, weights.stored | runs, cache_length)
        save(semantic, folder / files.semantic)
        if weights.quantized:
            (folder / files.precision).write_text(json.dumps(weights.quantized.record(), indent=2) + "\n")
        return {data.name: following.entry()}

    attached = store.run(f"attach-{component.name}", key, make)
    precision = None
    if component.quantized:  # this build's: a reused graph may have another in what the graph does not depend on
        recipe = component.quantized.selection.recipe.record()
        precision = json.loads((attached.path / files.precision).read_bytes()) | {"recipe": recipe}
    size = shared.bytes if shared else 0
    return Compiled(traced, attached, *_contract(attached.path / files.model), precision, files, size)


def _contract(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    import onnx

    graph = onnx.load_model(path, load_external_data=False).graph
    return tuple(value.name for value in graph.input), tuple(value.name for value in graph.output)
