"""The plan of a build or an export: every decision that is made before the work begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ...engines.folder.records import Speculation
from ...graphs.lowering import Lowering
from ...plugins.number_formats import NUMBER_FORMATS
from ...plugins.tensorrt.products import FULL_TENSORRT
from ..checkpoints.target_and_drafter import Inputs, cache_length
from ..hardware.gpus import sm_names
from ..precision.decide_recipe import decide, stored_experts
from ..precision.recipes import Recipe
from ..store.stage_origin import StageOrigin
from .build_platform import BuildPlatform
from .expert_lowering import select_expert_lowering
from .refusals import export_lowering
from .request import DEFAULT_BATCH_SIZE, ONNXRUNTIME, CompileRequest

_FP8_TAKEN = (
    "the engine is FP8 because the checkpoint is FP8 with input scales; --precision bf16 would dequantize the weights"
)

Command = Literal["build", "export"]

CHUNK = 512  # maximum prompt columns of one pass of a TensorRT plan


@dataclass(frozen=True)
class BuildPlan:
    """The resolved form of a ``request``, read by every step of a build, an export and their dry runs.

    ``platform`` has the backend, the GPUs and the lowering, ``recipe`` the number types, ``speculation`` the number of
    drafts per round. ``max_seq_len`` is in tokens. ``names`` are the options that name the same checkpoints again.
    """

    command: Command
    request: CompileRequest
    platform: BuildPlatform
    recipe: Recipe
    speculation: Speculation
    max_seq_len: int
    names: Mapping[str, str | None]
    warnings: tuple[str, ...] = ()

    @property
    def lowering(self) -> Lowering:
        """The form of the graphs."""
        return self.platform.lowering

    @property
    def cache_length(self) -> int:
        """The length T of the caches of every graph."""
        return cache_length(self.max_seq_len, self.speculation.max_num_speculative_tokens, self.lowering)

    @property
    def max_batch_size(self) -> int:
        """The maximum batch size of a TensorRT plan."""
        return self.request.plans.max_batch_size or DEFAULT_BATCH_SIZE

    @property
    def makes_plans(self) -> bool:
        """True if this run builds TensorRT plans from the graphs."""
        return self.platform.makes_plans and self.command == "build"

    @property
    def shares(self) -> bool:
        """True if the drafter's graph lies beside the target's and reads shared weights from its file."""
        return self.command == "build" and not self.makes_plans  # a plan holds its own weights

    @property
    def is_moved(self) -> bool:
        """True if the output is moved out of the cache, as an export is."""
        return self.command == "export"

    def stage_origin(self) -> StageOrigin:
        """Return the label of the cached steps of this plan."""
        model, draft = self.names.get("model"), self.names.get("draft")
        return StageOrigin(self.command, model or "", draft or "", self.recipe.name, self.lowering.name)

    def drafting(self, num_speculative_tokens: int) -> BuildPlan:
        """Return the same plan with another number of drafts."""
        return replace(self, speculation=replace(self.speculation, num_speculative_tokens=num_speculative_tokens))


def plan_of_build(request: CompileRequest, platform: BuildPlatform, inputs: Inputs) -> BuildPlan:
    """Plan a build on ``platform`` from its checkpoints.

    Raises ``UsageError`` or ``BuildError`` for types or a form that the checkpoints do not support.
    """
    platform, warnings = _select_lowering(platform, request, inputs)
    recipe = decide(
        request.precision, platform.lowering, inputs.target, platform.gpus, keeps_own=True, head=inputs.head
    )
    if request.precision.name is None and platform.lowering.is_tensorrt and NUMBER_FORMATS[recipe.name].is_quantized:
        warnings.append(_FP8_TAKEN)
    return BuildPlan(
        command="build",
        request=request,
        platform=platform,
        recipe=recipe,
        speculation=inputs.speculation(request.requested_drafts),
        max_seq_len=inputs.max_seq_len,
        names=inputs.resolved.repeatable(),
        warnings=(*inputs.warnings, *request.unused(), *warnings),
    )


def plan_of_export(request: CompileRequest, inputs: Inputs) -> BuildPlan:
    """Plan an export from its checkpoints; a build from it may choose fewer drafts, as its caches have room.

    Types default to those of a build for the GPU, if one is given. Raises what ``plan_of_build`` does.
    """
    platform, warnings = _select_lowering(platform_of_graphs(request), request, inputs)
    gpus = platform.gpus
    recipe = decide(request.precision, platform.lowering, inputs.target, gpus, keeps_own=bool(gpus), head=inputs.head)
    return BuildPlan(
        command="export",
        request=request,
        platform=platform,
        recipe=recipe,
        speculation=inputs.speculation(None if request.drafts else 0),
        max_seq_len=inputs.max_seq_len,
        names=inputs.resolved.repeatable(),
        warnings=(*inputs.warnings, *request.unused(), *warnings),
    )


def platform_of_graphs(request: CompileRequest) -> BuildPlatform:
    """Return the platform that an export is for. Raises ``UsageError`` for an unknown one."""
    lowering = export_lowering(request)
    backend = FULL_TENSORRT.name if lowering.is_tensorrt else ONNXRUNTIME
    return BuildPlatform(backend, "", sm_names(request.backend.gpus), lowering, runs_here=False)


def _select_lowering(
    platform: BuildPlatform, request: CompileRequest, inputs: Inputs
) -> tuple[BuildPlatform, list[str]]:
    """Return the platform with a lowering that supports the target's experts and its head, and warnings."""
    lowering, warnings = select_expert_lowering(
        platform.lowering,
        request.backend.experts,
        inputs.target.family,
        inputs.target.config,
        stored_experts(inputs.target),
    )
    return replace(platform, lowering=lowering), warnings
