"""One half of an engine, target or drafter: traced once, then lowered and given its weights, each a kept stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..graphs.families import TargetSpec, family_for
from ..graphs.heads import HeadSpec
from ..plugins.errors import EnvironmentProblem
from .checkpoint import Checkpoint
from .progress import Progress
from .stages import Stage, StageStore

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from ..graphs.lowering import Lowering

EXPORT_PACKAGES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")
MODEL = "model.onnx"
_SEMANTIC = "semantic.onnx"


@dataclass(frozen=True)
class Half:
    """What to trace and where its weights come from. ``facts`` is everything that the structure depends on."""

    name: str
    checkpoint: Checkpoint
    facts: Mapping[str, Any]
    trace: Callable[[], ir.Model]
    read: Callable[[str], np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Compiled:
    """A half's runnable graph and its I/O contract. ``traced`` and ``attached`` are the stages it came from."""

    traced: Stage
    attached: Stage
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def target_half(checkpoint: Checkpoint, spec: TargetSpec) -> Half:
    """The target as its family traces it; a tied tensor is read under the name it is stored by."""
    tied = family_for(checkpoint.config).tied(checkpoint.config)

    def trace() -> ir.Model:
        from ..graphs.trace import trace_target

        return trace_target(checkpoint.config, spec)

    def read(name: str) -> np.ndarray[Any, Any]:
        return checkpoint.read(name if name in checkpoint.tensors else tied.get(name, name))

    return Half("target", checkpoint, {"config": dict(checkpoint.config), "spec": asdict(spec)}, trace, read)


def drafter_half(checkpoint: Checkpoint, head: HeadSpec, spec: TargetSpec) -> Half:
    """The P-EAGLE head on its target; the graph names weights by module, the head knows their names in the file."""

    def trace() -> ir.Model:
        from ..graphs.trace import trace_drafter

        return trace_drafter(head, spec)

    def read(name: str) -> np.ndarray[Any, Any]:
        return checkpoint.read(head.keys.get(name, name))

    return Half("drafter", checkpoint, {"head": asdict(head), "spec": asdict(spec)}, trace, read)


def export_versions() -> dict[str, str]:
    """Versions of the packages that trace. Raises ``EnvironmentProblem`` when the ``[export]`` extra is absent."""
    found, missing = {}, []
    for package in EXPORT_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        raise EnvironmentProblem(
            f"building needs packages that are not installed: {', '.join(missing)}",
            why="the base installation only runs engines",
            fix="pip install 'peagle-compile[export]'",
        )
    return found


def trace(store: StageStore, half: Half, progress: Progress) -> Stage:
    """The half's semantic graph, without weights."""

    def make(folder: Path) -> None:
        from ..graphs.store import save

        save(half.trace(), folder / _SEMANTIC)

    with progress.step(f"trace {half.name}"):
        return store.run(f"trace-{half.name}", [half.facts, export_versions()], make)


def attach(
    store: StageStore, half: Half, traced: Stage, *, lowering: Lowering, cache_length: int, progress: Progress
) -> Compiled:
    """The half's graph as its backend runs it, with its weights."""
    key = [traced.path.name, lowering, cache_length, half.checkpoint.fingerprint]

    def make(folder: Path) -> None:
        from ..graphs.lowering import lower
        from ..graphs.store import load
        from ..graphs.weights import attach as stream
        from .durable import require_space

        lowered = lower(load(traced.path / _SEMANTIC), lowering, cache_length=cache_length)
        require_space(store.root, lowered.total_bytes)
        with progress.step(f"attach {half.name} weights", lowered.total_bytes) as advance:
            stream(lowered, half.read, folder / MODEL, advance)

    attached = store.run(f"attach-{half.name}", key, make, needed=_weight_bytes(half.checkpoint))
    return Compiled(traced, attached, *_contract(attached.path / MODEL))


def _contract(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    import onnx

    graph = onnx.load_model(path, load_external_data=False).graph
    return tuple(value.name for value in graph.input), tuple(value.name for value in graph.output)


def _weight_bytes(checkpoint: Checkpoint) -> int:
    """What the weights take in FP32."""
    return 4 * sum(math.prod(shape) for shape in checkpoint.shapes.values())
