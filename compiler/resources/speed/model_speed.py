"""The speed estimate of a build or an export in advance, from model, head, device and acceptance lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....engines.draft_methods import METHODS, DraftMethod, method_of_heads
from ....engines.draft_methods.record import Passes
from ...checkpoints.resolve_names import known_pair
from .acceptance_lengths import AcceptanceLengths
from .devices import gpu_device
from .drafter_work import assumed_head, drafter_work
from .pass_work import GraphWork
from .round_estimate import SHOWN, SpeedEstimate, estimate_rounds
from .target_work import GraphCounts, target_work

if TYPE_CHECKING:
    from ....engines.folder.records import Speculation
    from ....graphs.drafters import DrafterSpec
    from ....graphs.layer_trials import Trials
    from ....graphs.lowering import Lowering
    from ....graphs.targets import TargetSpec
    from ...precision.recipes import Recipe
    from ...request.request import CompileRequest
    from ..workload import Workload

NO_LENGTHS = (
    "an estimate of tokens per second requires the head's acceptance length, such as --acceptance-length 4:3.2,8:4.1; "
    "none is published"
)
INTERPOLATED = "other K at a constant rate of acceptance"
_UNMEASURED = "an estimate of times requires the speed of this machine, which only a build measures"
_NO_GPU = "an estimate of times requires a GPU of known speed, such as --gpu b200"
_NOT_ESTIMATED = "times are estimated for GPUs, and for this project's kernels on CPUs"


@dataclass(frozen=True)
class SpeedQuestion:
    """The draft method, the acceptance lengths and the numbers of drafts to estimate.

    ``lengths`` is None if they are unknown. ``max_drafts`` is the maximum of drafts, ``requested_drafts`` the number
    requested, None if it adapts. ``head_parameters`` is the published size of a head whose checkpoint is not local.
    """

    method: DraftMethod
    lengths: AcceptanceLengths | None
    max_drafts: int
    requested_drafts: int | None = None
    head_parameters: int | None = None


def speed_question(request: CompileRequest, speculation: Speculation, head: DrafterSpec | None) -> SpeedQuestion:
    """Return the question of a request: its own acceptance lengths, else those published for the known head."""
    pair = known_pair(request.pair.model)
    is_known = pair is not None and request.pair.draft is None
    max_drafts = speculation.max_num_speculative_tokens
    lengths = None
    if given_lengths := request.speed.lengths(speculation.trained_depth or max_drafts or 1):
        lengths = AcceptanceLengths(given_lengths, "acceptance length as given")
    elif pair and is_known and pair.acceptance:
        lengths = AcceptanceLengths(pair.acceptance.tokens, f"acceptance length: {pair.acceptance.source}")
    return SpeedQuestion(
        method=_method(request, head),
        lengths=lengths,
        max_drafts=max_drafts,
        requested_drafts=None if speculation.adapts else speculation.num_speculative_tokens,
        head_parameters=pair.drafter_parameters if pair and is_known else None,
    )


def _method(request: CompileRequest, head: DrafterSpec | None) -> DraftMethod:
    """Return the draft method; a head that is not local is a P-EAGLE head, unless it is named as another kind."""
    if request.headless:
        return request.headless
    if head:
        return method_of_heads(Passes.ONE if head.strategy == "parallel" else Passes.ONE_PER_DRAFT)
    method = METHODS.get(request.pair.draft or "")
    return method or method_of_heads(Passes.ONE)


def drafter_of(
    question: SpeedQuestion,
    head: DrafterSpec | None,
    spec: TargetSpec,
    text: Mapping[str, Any],
    recipe: Recipe,
    lowering: Lowering,
) -> tuple[GraphWork | None, list[str]]:
    """Return the work of the drafter, None without one, and notes on its lengths and on what was assumed of it."""
    method = question.method
    notes = [INTERPOLATED] if question.lengths else [NO_LENGTHS] if method.drafts else []
    if not method.needs_head:
        return None, notes
    if question.max_drafts < SHOWN[-1]:
        notes.append(f"the head was trained for K = {question.max_drafts}")
    if head is None:
        is_parallel = method.passes is Passes.ONE
        head, head_notes = assumed_head(spec, text, question.head_parameters, parallel=is_parallel)
        notes.append(head_notes)
    return drafter_work(head, recipe, lowering), notes


def estimate_speed(
    question: SpeedQuestion,
    workload: Workload,
    spec: TargetSpec,
    text: Mapping[str, Any],
    trials: Trials,
    gpu: str | None,
) -> SpeedEstimate:
    """Estimate the rounds of one request on ``gpu``; without one, only what they move and compute."""
    recipe, lowering = workload.recipe, workload.lowering
    counts = GraphCounts.of_trials(trials, workload.census, recipe, lowering)
    target = target_work(workload.census, workload.lines, recipe, spec, text, counts)
    drafter, notes = drafter_of(question, workload.head, spec, text, recipe, lowering)
    if gpu is None or not lowering.is_tensorrt:
        notes.append(_NO_GPU if lowering.is_tensorrt else _UNMEASURED if lowering.packs else _NOT_ESTIMATED)
    return estimate_rounds(
        target,
        drafter,
        question.method,
        gpu_device(gpu) if gpu and lowering.is_tensorrt else None,
        question.lengths,
        max_drafts=question.max_drafts,
        shown=sorted({*SHOWN, question.requested_drafts or 0}),
        notes=notes,
    )
