"""TensorRT's part of a build, as kept stages: plans of both graphs, and kernels and plugins for their GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...engines.folder.records import FURTHER, FURTHER_ONE, ONE, PREFILL, VERIFY, Profile, Speculation
from ...graphs.lowering import TENSORRT
from ...plugins.errors import BuildError, EnvironmentProblem
from ...plugins.graph_contract import HIDDEN
from ...plugins.tensorrt.products import PRODUCTS
from ..checkpoints.target_and_drafter import cache_length
from ..hardware.machine import inspect_machine
from ..precision.product_table import BuiltProduct
from ..request.build_plan import CHUNK, BuildPlan
from ..request.build_platform import BuildPlatform
from ..request.request import PlanOptions
from ..store.atomic_files import require_space
from ..store.cache_folder import UntrustedCache, require_trusted
from ..store.stages import Stage
from ..tensorrt.worker_protocol import PlanFacts, PlanRequest
from .graph_stages import MODEL, Compiled
from .shared_steps import PipelineRun

PLAN = "model.plan"
FEWEST_POSITIONS, USUAL_POSITIONS = 1024, 4096  # cache positions that a pass reads; the cost of fewer is negligible
_FACTS = "plan.json"
_GB = 10**9


@dataclass(frozen=True)
class PlanStage:
    """A kept plan, with the counts and measurements of its build."""

    stage: Stage
    facts: PlanFacts

    @property
    def placed(self) -> Stage:
        """The stage with the files that go into an engine."""
        return replace(self.stage, files={file: of for file, of in self.stage.files.items() if file != _FACTS})


@dataclass(frozen=True)
class PluginLibraryStage:
    """The C++ plugin library; None if it could not be compiled, with the reason in ``warnings``."""

    stage: Stage | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plans:
    """The plans of an engine, by component, and the kernels and plugins for their GPUs."""

    by_component: Mapping[str, PlanStage]
    kernels: Stage
    library: PluginLibraryStage

    def stages(self) -> dict[str, Stage]:
        """Return the stages, with the files that go into an engine, by component."""
        return {name: plan.placed for name, plan in self.by_component.items()}

    def compiled(self) -> list[Stage]:
        """Return the kernels, and the library of plugins if there is one."""
        return [self.kernels, *([self.library.stage] if self.library.stage else [])]

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that built the plans; loading an engine compares them."""
        return {name: version for plan in self.by_component.values() for name, version in plan.facts.versions.items()}

    def products(self) -> dict[str, tuple[BuiltProduct, ...]]:
        """Return TensorRT's account of the matmuls of each plan, by component."""
        return {name: plan.facts.products for name, plan in self.by_component.items()}

    def warnings(self) -> list[str]:
        """Return the warnings from building the plans and the plugin library."""
        return [*(each for plan in self.by_component.values() for each in plan.facts.warnings), *self.library.warnings]


@dataclass(frozen=True)
class PlanSource:
    """A lowered graph to build a plan from: its file, a key of its content, and the bytes of graph and weights.

    ``precision`` is the proof of its types; ``record`` is read instead of the graph where ``onnx`` is not required.
    ``is_autoregressive``: the graph is that of an autoregressive drafter.
    """

    graph: Path
    key: str
    size: int
    precision: Mapping[str, Any] | None = None
    record: Path | None = None
    is_autoregressive: bool = False

    @classmethod
    def of(cls, compiled: Compiled) -> PlanSource:
        """Return the source for a graph of this build."""
        attached = compiled.attached
        size = sum(entry.size for entry in attached.files.values())
        autoregressive = HIDDEN in compiled.inputs
        return cls(
            attached.path / MODEL, attached.path.name, size, compiled.precision, is_autoregressive=autoregressive
        )


def build_plans(run: PipelineRun, sources: Mapping[str, PlanSource], plan: BuildPlan) -> Plans:
    """Build the plans of all graphs, one after the other, and the kernels. Raises ``BuildError``."""
    by_component = {}
    for name, source in sources.items():
        sizes = profiles(
            name, plan.max_batch_size, plan.speculation, plan.max_seq_len, is_autoregressive=source.is_autoregressive
        )
        with run.phases(f"plan {name}") as record:
            by_component[name] = build_plan(run, name, source, plan.platform, plan.request.plans, sizes)
            record["reused"] = by_component[name].stage.reused
    with run.phases("kernels") as record:
        kernels = build_kernels(run, plan.platform.gpus)
        library = build_plugin_library(run, kernels)
        record["reused"] = kernels.reused and (library.stage is None or library.stage.reused)
    return Plans(by_component, kernels, library)


def profiles(
    component: str,
    max_batch_size: int,
    speculation: Speculation,
    max_seq_len: int,
    *,
    is_autoregressive: bool = False,
) -> tuple[Profile, ...]:
    """Return the optimization profiles of a plan.

    One decodes all rows at once, one a single row if there can be more, and one reads a chunk of a single row's prompt.
    The minimum is one draft for a drafter and none for a target, which emits one column more than it gets drafts.
    TensorRT tunes for the usual sizes, those of ``num_speculative_tokens``; requests may use more. An autoregressive
    drafter has further passes of one column without features, for all rows and for a single one.
    """
    usual, max_drafts = speculation.num_speculative_tokens, speculation.max_num_speculative_tokens
    emitted = (2 if component == "drafter" else 1, max(usual, 1) + 1, max(max_drafts, 1) + 1)
    columns, chunk = (1, usual + 1, max_drafts + 1), min(CHUNK, max_seq_len)
    length = cache_length(max_seq_len, max_drafts, TENSORRT)
    # If only one size is possible, TensorRT treats it as a constant: it drops the slice of the caches, and expands them
    # in memory for every query head.
    fewest = min(FEWEST_POSITIONS, length - 1)
    positions = (fewest, min(USUAL_POSITIONS, length), length)
    rows, one = (1, max_batch_size, max_batch_size), (1, 1, 1)
    first = (
        Profile(VERIFY, rows, columns, emitted, positions),
        *([Profile(ONE, one, columns, emitted, positions)] if max_batch_size > 1 else []),
        Profile(PREFILL, one, (1, chunk, chunk), emitted, positions),
    )
    if not is_autoregressive:
        return first
    further = Profile(FURTHER, rows, (1, 1, 1), (2, 2, 2), positions, (0, 0, 0))
    return (
        *(replace(each, aux_columns=each.columns) for each in first),
        further,
        *([replace(further, name=FURTHER_ONE, rows=one)] if max_batch_size > 1 else []),
    )


def build_plan(
    run: PipelineRun,
    component: str,
    source: PlanSource,
    platform: BuildPlatform,
    options: PlanOptions,
    sizes: tuple[Profile, ...],
) -> PlanStage:
    """Build the TensorRT plan of a component's lowered graph, with optimization profiles of these ``sizes``.

    Raises ``BuildError`` if TensorRT rejects the graph, ``EnvironmentProblem`` if the GPU to build on is unknown.
    """
    store = run.store
    timings = "timing", f"{platform.backend}-{platform.version}.cache"
    require_trusted(store.root, *timings)
    # GPUs of one architecture differ (H100, H200), and the kernels that are fastest on one are not on another.
    is_ahead = PRODUCTS[platform.backend].builds_ahead
    gpu = None if is_ahead else inspect_machine().with_known_gpus().builds_on(platform.gpus)
    plan_request = PlanRequest(
        name=component,
        graph=source.graph,
        product=platform.backend,
        gpus=platform.gpus,
        profiles=sizes,
        workspace_bytes=None if options.workspace_gb is None else int(options.workspace_gb * _GB),
        optimization_level=options.optimization_level,
        timing_cache=store.root.joinpath(*timings),
        record=source.record,
        tuned_on=gpu.name if gpu else "",
    )
    key = asdict(plan_request) | {"graph": source.key, "timing_cache": None, "version": platform.version}
    key |= {"record": source.record is not None}

    def make(folder: Path) -> None:
        from ..tensorrt.build_plan import build_plan as build
        from ..tensorrt.plan_proof import require_effect

        # A plan contains the weights; it shares nothing with the graph.
        require_space(store.root, source.size)
        facts = build(plan_request, folder / PLAN, run.progress)
        if source.precision:
            notes = require_effect(component, source.precision, facts.products)
            facts = replace(facts, warnings=(*facts.warnings, *notes))
        (folder / _FACTS).write_text(json.dumps(facts.to_record()))

    stage = store.run(f"plan-{component}", key, make, needed=source.size)
    return PlanStage(stage, PlanFacts.from_record(json.loads((stage.path / _FACTS).read_bytes())))


def build_kernels(run: PipelineRun, gpus: Sequence[str]) -> Stage:
    """Pack the kernels of all plugins for these GPUs: prebuilt ones where shipped, the rest compiled with NVRTC.

    Raises ``EnvironmentProblem`` if NVRTC is needed but missing.
    """
    from ...plugins.kernels.pack import identity, obtain, write_pack
    from ...plugins.kernels.sources import digest, kernel_ops

    kernels = [(op, int(gpu.removeprefix("sm_"))) for gpu in gpus for op in kernel_ops()]

    def make(folder: Path) -> None:
        cubins = {}
        with run.progress.step("compile kernels", len(kernels)) as advance:
            for op, sm in kernels:
                cubin = obtain(op, sm)  # a cubin of an earlier GPU of the same generation may serve two
                cubins[op.name, cubin.sm] = cubin
                advance(1)
        write_pack(folder, list(cubins.values()))

    return run.store.run("kernels", [[op.name, digest(op), sm, identity(op, sm)] for op, sm in kernels], make)


def build_plugin_library(run: PipelineRun, kernels: Stage) -> PluginLibraryStage:
    """Compile the C++ plugin library around kept kernels; the runtime does not need it, so a failure is a warning."""
    from ...plugins.cpu.compile import find_compilers, machine_name
    from ...plugins.kernels.pack import read_pack
    from ...plugins.tensorrt.library.compile import COST, compile_with_cubins
    from ...plugins.tensorrt.library.pack import write_library
    from ...plugins.tensorrt.library.sources import digest

    cubins = read_pack(kernels.path).cubins

    def make(folder: Path) -> None:
        with run.progress.step("compile the plugin library"):
            write_library(folder, compile_with_cubins(cubins))

    try:
        compilers = [compiler.identity for compiler in find_compilers(COST)]
        return PluginLibraryStage(run.store.run("plugin-library", [digest(cubins), machine_name(), compilers], make))
    except UntrustedCache:
        raise
    except (EnvironmentProblem, BuildError) as error:
        return PluginLibraryStage(None, (f"the C++ plugin library was not built: {error.one_line}",))


def library_of_export(run: PipelineRun, gpus: Sequence[str]) -> PluginLibraryStage:
    """Compile the plugin library for the GPUs that an export names; a failure is a warning."""
    if not gpus:
        return PluginLibraryStage(None)
    try:
        with run.phases("plugin library") as record:
            library = build_plugin_library(run, build_kernels(run, gpus))
            record["reused"] = library.stage is not None and library.stage.reused
            return library
    except UntrustedCache:
        raise
    except (EnvironmentProblem, BuildError) as error:
        return PluginLibraryStage(None, (f"the C++ plugin library was not built: {error.one_line}",))
