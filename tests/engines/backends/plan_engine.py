"""Engines with stand-ins for plans: the real TensorRT backend over its graphs, on the CPU."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import Component, drafter_component, target_component
from peagle.compiler.pipeline.plan_stages import profiles
from peagle.compiler.precision.kv_cache_scales import LowPrecisionCaches
from peagle.compiler.store.stages import StageStore
from peagle.engines import Engine
from peagle.engines.backends.profiling import Profiler
from peagle.engines.backends.tensorrt.backend import TensorRTBackend
from peagle.engines.folder.manifest import Manifest, in_oldest_format
from peagle.engines.folder.records import (
    AddedDrafter,
    BackendRecord,
    FileEntry,
    Part,
    PlanRecord,
    PlanTensor,
    Speculation,
)
from peagle.engines.text.tokenizer import Tokenizer
from peagle.graphs.drafters import read_drafter
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.trace import Dtype
from peagle.plugins.graph_contract import HIDDEN
from tests.engines.backends.host_device import HostDevice
from tests.engines.backends.stand_in import (
    DTYPES,
    VERSION,
    Load,
    OnnxRuntimeGraph,
    quiet_session,
    stand_in,
    write_plan,
)

FEWEST_POSITIONS = 16  # of the caches that a pass reads: small texts then read several lengths of them


def lowered(target: Path, drafter: Path, dtype: Dtype, cache_length: int, cache_scale: float = 0.0) -> dict[str, Path]:
    """Both halves of a checkpoint pair, traced in ``dtype`` and lowered for TensorRT, with their weights.

    With a ``cache_scale`` the target's caches hold codes, all of them times that.
    """
    opened, checkpoint = Target.open(target), Checkpoint.open(drafter)
    head = read_drafter(checkpoint.config, checkpoint.shapes, opened.spec)
    opened = opened.with_taps(head.taps)
    halves = target_component(opened), drafter_component(checkpoint, head, opened)
    if cache_scale:
        caches = {f"{kind}_cache.{i}": cache_scale for kind in "kv" for i in range(opened.spec.num_layers)}
        halves = replace(halves[0], caches=LowPrecisionCaches("fp8", caches)), halves[1]
    return {half.name: lowered_half(half, dtype, cache_length) for half in halves}


def lowered_half(half: Component, dtype: Dtype, cache_length: int) -> Path:
    """One half, traced in ``dtype`` and lowered for TensorRT, with its weights."""
    store = StageStore.default()
    graph = graph_stages.attach(
        store, half, graph_stages.trace(store, half, dtype, Quiet()),
        lowering=LOWERINGS["tensorrt"], cache_length=cache_length, progress=Quiet(),
    )  # fmt: skip
    return graph.attached.path / graph_stages.MODEL


def plan_manifest(manifest: Manifest, graphs: dict[str, Path], folder: Path, rows: int = 4) -> Manifest:
    """``manifest`` of an ONNX Runtime engine, turned into that of plans for ``rows`` rows, which are written."""
    most, length = manifest.speculation.max_num_speculative_tokens, manifest.shapes.max_seq_len
    halves = {}
    for name, graph in graphs.items():
        session = quiet_session(graph)
        values = [*session.get_inputs(), *session.get_outputs()]
        tensors = tuple(PlanTensor(v.name, DTYPES[v.type], _known(v.shape)) for v in values)
        positions = (FEWEST_POSITIONS, 2 * FEWEST_POSITIONS, manifest.shapes.cache_length)
        speculation = Speculation(most // 2, most, None)
        made = profiles(name, rows, speculation, length, is_autoregressive=HIDDEN in {v.name for v in values})
        sizes = tuple(replace(each, positions=positions) for each in made)
        write_plan(folder / name / "model.plan", graph, sizes)
        part: Part = getattr(manifest, name)
        halves[name] = replace(
            part,
            file=f"{name}/model.plan",
            inputs=tuple(v.name for v in session.get_inputs()),
            outputs=tuple(v.name for v in session.get_outputs()),
            plan=PlanRecord(sizes, {}, {}, tensors),
        )
    backend = BackendRecord("tensorrt-rtx", "tensorrt", {"tensorrt-rtx": VERSION}, ("sm_120",))
    return replace(manifest, backend=backend, **halves)


def write_twin(folder: Path, manifest: Manifest) -> None:
    """Write the engine of plans with its own drafter once more, added as ``twin``."""
    part, file = manifest.drafter, "drafters/twin/model.plan"
    assert part is not None
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / part.file, folder / file)
    again = replace(part, file=file, origin=replace(part.origin, revision="twin"))
    added = AddedDrafter(manifest.method, again, manifest.speculation, manifest.shapes.draft_vocab_size, "fp32")
    files = {**manifest.files, file: FileEntry.of(folder / file)}
    in_oldest_format(replace(manifest, drafters={"twin": added}, files=files)).write(folder)


def _known(shape: list[int | str]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else -1 for dim in shape)


def plan_engine(folder: Path, manifest: Manifest, tokenizer: Path, slots: int) -> tuple[Engine, HostDevice]:
    """An engine over ``plan_manifest`` with the tokenizer of another folder, and the device that it runs on."""
    device = HostDevice()
    return engine_on(device, OnnxRuntimeGraph, folder, manifest, tokenizer, slots), device


def engine_on(
    device: Any,
    load: Load,
    folder: Path,
    manifest: Manifest,
    tokenizer: Path,
    slots: int,
    profiler: Profiler | None = None,
) -> Engine:
    """The engine on any device; ``load`` loads the graphs of its plans."""
    backend = TensorRTBackend(folder, manifest, slots, device, stand_in(device, load), profiler)
    return Engine(folder, manifest, backend, Tokenizer(tokenizer, manifest.eos_token_ids))
