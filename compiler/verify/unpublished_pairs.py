"""Run pairs and targets in any recipe with ONNX Runtime, from the stage store and without publishing an engine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engines.backends.onnxruntime.loaded_graphs import open_session, tensors_of
from ...engines.draft_methods.draft_tree import chain_ancestors
from ...engines.folder.manifest import Manifest
from ...engines.folder.records import BackendRecord, Part
from ...engines.requests.params import SamplingParams, policy_of
from ...plugins.graph_contract import ANCESTORS, POSITIONS, SKIPPED, is_cache, written
from ..checkpoints.target_and_drafter import cache_length
from ..console.exit_cleanup import remove_on_exit
from ..console.progress import Progress
from ..pipeline.component import Component, drafter_component, target_component
from ..pipeline.graph_stages import MODEL, Compiled, attach, trace
from ..precision.kv_cache_scales import LowPrecisionCaches
from ..precision.recipes import Recipe
from ..store.atomic_files import writing
from ..store.cache_folder import make_private, require_trusted
from ..store.killed_stages import SCRATCH, SCRATCH_LOCK
from ..store.leftovers import remove
from ..store.locks import locked_file
from ..store.stages import Stage, StageStore
from .engine_origin import Origins
from .engine_ranges import rebuild_ranges
from .logits import Array

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...engines import Engine
    from ...graphs.lowering import Lowering
    from ..precision.calibration.saved_ranges import Scales

_LENGTH_UNIT = 64  # the cache length of a target session is a multiple of it


@dataclass(frozen=True)
class UnpublishedPairs:
    """Makes pairs and targets with the checkpoints, sizes and tokenizer of the engine in ``folder``."""

    folder: Path
    manifest: Manifest
    origins: Origins
    store: StageStore
    progress: Progress
    held: list[Stage] = field(default_factory=list)  # stages that its pairs and targets read

    def pair(self, recipe: Recipe, lowering: Lowering, *, wide_drafter: bool = False) -> Engine:
        """Return the target and its drafter, if any, as an engine with the sizes of the verified one.

        The engine's folder is the stage store, which has both graphs. ``wide_drafter``: do not quantize the drafter.
        """
        from ...engines import Engine
        from ...engines.backends.onnxruntime.backend import OnnxRuntimeBackend
        from ...engines.text.tokenizer import Tokenizer

        published, origins = self.manifest, self.origins
        length = cache_length(published.shapes.max_seq_len, published.speculation.max_num_speculative_tokens, lowering)
        of_drafter = replace(recipe, drafter=recipe.wide) if wide_drafter else recipe
        components = [self.component(recipe, lowering)]
        if origins.drafter:
            components.append(drafter_component(*origins.drafter, origins.target, of_drafter, lowering))
        graphs = {component.name: self._compile(component, recipe, lowering, length) for component in components}
        caches = {component.name: component.caches for component in components}
        parts = {name: self._part(part, graphs[name], caches[name]) for name, part in published.parts.items()}
        manifest = replace(
            published,
            target=parts["target"],
            drafter=parts.get("drafter"),
            backend=BackendRecord("onnxruntime", lowering.name, {}),
            shapes=replace(published.shapes, cache_length=length),
            files={
                self._stored(graph, name): entry
                for graph in graphs.values()
                for name, entry in graph.attached.files.items()
            },
        )
        backend = OnnxRuntimeBackend(self.store.root, manifest, num_slots=1, threads=None)
        return Engine(self.store.root, manifest, backend, Tokenizer(self.folder, published.eos_token_ids))

    def component(self, recipe: Recipe, lowering: Lowering, *, every_layer: bool = False) -> Component:
        """Return the target with the drafter's auxiliary hidden-state layers, or with all layers.

        FP8 KV caches are emulated: they store the dequantized values.
        """
        target = self.origins.target
        if every_layer:
            target = target.with_taps(range(target.spec.num_layers))
        component = target_component(target, recipe, lowering, self.scales(recipe, lowering))
        emulates = component.caches is not None and component.caches.is_calibrated
        return replace(component, caches=component.caches and replace(component.caches, emulated=emulates))

    def session(self, recipe: Recipe, lowering: Lowering, longest: int, *, every_layer: bool = False) -> TargetSession:
        """Return a session of the target for texts of up to ``longest`` tokens."""
        return self.session_of(self.component(recipe, lowering, every_layer=every_layer), recipe, lowering, longest)

    def session_of(
        self, component: Component, recipe: Recipe, lowering: Lowering, longest: int, store: StageStore | None = None
    ) -> TargetSession:
        """Return a session of the target ``component``; its weights are written to ``store``."""
        length = -(-longest // _LENGTH_UNIT) * _LENGTH_UNIT
        graph = self._compile(component, recipe, lowering, length, store)
        return TargetSession(graph.attached.path / MODEL, self.origins.target.spec.hidden_size)

    def scales(self, recipe: Recipe, lowering: Lowering) -> Scales | None:
        """Return the ranges that the engine was built with; None if its recipe needs none."""
        from ..precision.weight_source import uncalibrated, unweighted

        target = self.origins.target
        needs = uncalibrated(target, recipe, lowering)
        if "calibration" in self.manifest.precision:  # rounding uses it to lose less, but does not need it
            needs += unweighted(target, recipe, lowering)
        if not needs:
            return None
        return rebuild_ranges(self.folder, self.manifest, self.origins, self.store, self.progress)

    def _compile(
        self, component: Component, recipe: Recipe, lowering: Lowering, length: int, store: StageStore | None = None
    ) -> Compiled:
        traced = trace(self.store, component, recipe.dtype, self.progress)
        store, with_whole_caches = store or self.store, _with_whole_caches(lowering)
        graph = attach(
            store, component, traced, lowering=with_whole_caches, cache_length=length, progress=self.progress
        )
        self.held.append(graph.attached)
        return graph

    def _part(self, part: Part, graph: Compiled, quantized: LowPrecisionCaches | None) -> Part:
        file, dtype = self._stored(graph, MODEL), quantized.dtype if quantized else ""
        caches = tuple(replace(cache, dtype=dtype) for cache in part.caches)
        return replace(part, file=file, inputs=graph.inputs, outputs=graph.outputs, caches=caches, plan=None)

    def _stored(self, graph: Compiled, name: str) -> str:
        """Return the path of a graph's file relative to the store, for the manifest."""
        return (graph.attached.path / name).relative_to(self.store.root).as_posix()


@dataclass(frozen=True)
class TargetPass:
    """Outputs of one pass: ``logits`` f32 [len, V]; ``streams`` f32 [len, A, H], auxiliary hidden states."""

    logits: Array
    streams: Array


class TargetSession:
    """A target's graph in ONNX Runtime. Texts have at most as many tokens as the cache length."""

    def __init__(self, model: Path, hidden_size: int) -> None:
        self._hidden_size = hidden_size
        self._session = open_session(model, 0)
        output_names = {output.name for output in self._session.get_outputs()}
        self._shown = [name for name in ("logits", "aux_hidden") if name in output_names]
        tensors, _ = tensors_of(self._session)
        self._caches = {
            name: np.zeros([1 if dim is None else dim for dim in tensor.dims], tensor.dtype)
            for name, tensor in tensors.items()
            if is_cache(name)
        }
        self._trees = {ANCESTORS, SKIPPED} & tensors.keys()

    def run(self, ids: Sequence[int]) -> TargetPass:
        """Run the whole text in one pass."""
        from onnxruntime import OrtValue

        count, (i64, i32, f32) = len(ids), (np.int64, np.int32, np.float32)
        inputs: dict[str, Any] = {
            "input_ids": np.array([ids], i64),
            "start": np.zeros(1, i64),
            "window_len": np.array([count], i32),
            "draft_len": np.array([count - 1], i32),  # outputs the logits of every position
            "forced_next": np.full(1, -1, i64),
            "uniform": np.zeros((1, count), f32),
        }
        chain = {ANCESTORS: chain_ancestors(count)[None], SKIPPED: np.zeros((1, count), i64)}
        inputs |= {name: chain[name] for name in self._trees}
        binding = self._session.io_binding()
        for name, array in (inputs | policy_of(SamplingParams())).items():
            binding.bind_cpu_input(name, array)
        for name, array in self._caches.items():
            value = OrtValue.ortvalue_from_numpy(array)  # in place: the kernel needs one buffer for both
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(written(name), value)
        for name in self._shown:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        logits, *streams = (value.numpy()[0] for value in binding.get_outputs()[-len(self._shown) :])
        hidden = streams[0] if streams else np.zeros((count, 0), np.float32)
        return TargetPass(logits, hidden.reshape(count, hidden.shape[1] // self._hidden_size, self._hidden_size))

    def logits(self, ids: Sequence[int]) -> Array:
        """Return the logits after each token, f32 [len, V]."""
        return self.run(ids).logits

    def streams(self, ids: Sequence[int]) -> Array:
        """Return the auxiliary hidden states, f32 [len, A, H]."""
        return self.run(ids).streams


def _with_whole_caches(lowering: Lowering) -> Lowering:
    """Return the lowering with graphs that always read their whole caches.

    TensorRT's host passes the length to read in an input, which ONNX Runtime's does not.
    """
    if not lowering.is_tensorrt:
        return lowering

    def apply(model: ir.Model) -> None:
        import onnx_ir as ir

        lowering.apply(model)
        caches = [value for value in model.graph.inputs if is_cache(value.name or "")]
        for value in [value for value in model.graph.inputs if value.name == POSITIONS]:
            model.graph.inputs.remove(value)
            shape = caches[0].shape
            value.const_value = ir.tensor(np.arange(shape[2] if shape else 0, dtype=np.int64), name=POSITIONS)
            model.graph.initializers[POSITIONS] = value

    return replace(lowering, name=f"{lowering.name}-whole-caches", apply=apply)


@contextmanager
def scratch(root: Path) -> Iterator[StageStore]:
    """Provide a temporary stage store for one graph, and remove it however the work ends.

    It is below ``root``, whose disk needs enough space. A lock allows one such store at a time across all processes,
    because each is as large as a model. Leftovers of killed processes are removed first.
    """
    with writing(root, 0):
        require_trusted(root, SCRATCH_LOCK)
        (make_private(root) / SCRATCH_LOCK).touch()
    with locked_file(root / SCRATCH_LOCK):
        for left_over in root.glob(f"{SCRATCH}*"):
            remove(left_over)
        with tempfile.TemporaryDirectory(dir=root, prefix=SCRATCH) as folder, remove_on_exit(Path(folder)):
            yield StageStore(Path(folder))
