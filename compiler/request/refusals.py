"""Checks of a request that need no checkpoint."""

from __future__ import annotations

from dataclasses import replace

from ...engines.draft_methods import headless_named
from ...graphs.lowering import TENSORRT, Lowering
from ...plugins.errors import UsageError
from ...plugins.number_formats import FP8
from ..checkpoints.known_pairs import PAIRS
from ..checkpoints.resolve_names import has_drafter
from ..hardware.gpus import export_form, sm_names, sm_number
from ..precision.allowed_recipes import lowering_for, require_known
from ..precision.decide_recipe import decide
from ..store.destination import require_disjoint, require_publishable
from .expert_lowering import lowering_with_experts
from .request import CompileRequest


def check_build(request: CompileRequest) -> None:
    """Raise ``UsageError`` for an invalid build request."""
    request.backend.check_known()
    require_known(request.precision.name)
    request.precision.check()
    request.speed.check()
    request.calibration.check()
    request.backend.check_lowering()
    request.sizes.check(
        why="this option is the number of tokens drafted per round",
        fix="omit the option to let the build choose the fastest number, or use 0 for plain decoding",
    )
    _check_drafter(request)
    request.plans.check()
    _check_out(request)


def check_export(request: CompileRequest) -> None:
    """Raise ``UsageError`` for an invalid export request."""
    require_known(request.precision.name)
    request.precision.check()
    request.speed.check()
    decide(request.precision, export_lowering(request), gpus=sm_names(request.backend.gpus))
    request.calibration.check()
    request.sizes.check(fix="use the largest number of drafts per round that the engine should support")
    _check_drafter(request)
    check_options_of_absent_head(request)
    _check_out(request)


def exports_alone(request: CompileRequest) -> bool:
    """Return True if an export has only the target: no head was given, and none is known for the model."""
    pair = request.pair
    return request.headless is None and pair.draft is None and not has_drafter(pair.model)


def check_options_of_absent_head(request: CompileRequest) -> None:
    """Raise ``UsageError`` for options of a head if a target is exported alone; the head's taps may be given."""
    if not exports_alone(request):
        return
    flags = replace(request, head=replace(request.head, taps=())).of_head()
    flags += [f"--draft-precision {kind}"] if (kind := request.precision.drafter) is not None else []
    if flags:
        raise UsageError(
            f"{', '.join(flags)} has no effect without a head",
            why=f"no head was given and none is known for {request.pair.model}, so the target is exported alone",
            fix="add --draft, or omit the option",
        )


def export_lowering(request: CompileRequest) -> Lowering:
    """Return the lowering of an export; for TensorRT, the one of the GPU. Raises ``UsageError`` for an unknown one."""
    return lowering_with_experts(_form_of_export(request), request.backend.experts)


def _form_of_export(request: CompileRequest) -> Lowering:
    requested, gpus = request.backend.lowering, sm_names(request.backend.gpus)
    if not gpus:
        return lowering_for(requested or "ort")
    best = lowering_for(export_form([*map(sm_number, gpus)]))
    lowering = best if requested in (None, TENSORRT.name) else lowering_for(requested)
    if not lowering.is_tensorrt:
        raise UsageError(
            f"--gpu {','.join(request.backend.gpus)} does not work with --for {requested}",
            why="only TensorRT engines run on a GPU",
            fix="omit one of them, or use --for tensorrt",
        )
    if lowering.has_expert_layer and not best.has_expert_layer:
        raise UsageError(
            f"--for {requested} does not work with --gpu {','.join(request.backend.gpus)}",
            why="TensorRT does not support its expert layer on that GPU",
            fix="use --for tensorrt",
        )
    return lowering


def check_quantize(request: CompileRequest) -> None:
    """Raise ``UsageError`` for an invalid quantize request."""
    require_known(request.precision.name)
    if request.precision.name not in (None, FP8.name):
        raise UsageError(
            f"quantize does not write {request.precision.name} checkpoints",
            why="quantize writes only fp8; with other precisions, a build quantizes the weights",
            fix=f"omit --precision, or run `peagle-compile build --precision {request.precision.name}`",
        )
    if request.precision.kv_cache not in (None, FP8.name):
        raise UsageError(
            f"quantize does not support --kv-cache-dtype {request.precision.kv_cache}",
            why="only fp8 caches have stored scales",
            fix="use --kv-cache-dtype fp8, or omit the option",
        )
    request.calibration.check()
    _check_out(request)


def _check_drafter(request: CompileRequest) -> None:
    """Raise ``UsageError`` for invalid taps, contradicting numbers of drafts, and options of an absent drafter."""
    request.head.check()
    k, draft = request.sizes.num_speculative_tokens, request.pair.draft
    if k and (method := headless_named(draft)) and not method.drafts:
        raise UsageError(
            f"--draft {draft} and --num-speculative-tokens {k} cannot be combined",
            why=f"{draft} is plain decoding, which drafts no tokens",
            fix="omit one of them, or use --draft ngram for drafts without a head",
        )
    if draft is not None and request.pair.head is None and request.of_head():
        raise UsageError(
            f"{', '.join(request.of_head())} has no effect with --draft {draft}",
            why="this draft method uses no head",
            fix=f"omit the option, or pass a head instead of {draft} (./{draft} for a folder of that name)",
        )
    if request.headless and request.precision.drafter is not None:
        plain_option = (
            f"--draft {draft}" if draft is not None and request.pair.head is None else "--num-speculative-tokens 0"
        )
        raise UsageError(
            f"--draft-precision {request.precision.drafter} has no effect with {plain_option}",
            why="this engine would have no drafter",
            fix="omit one of them",
        )


def _check_out(request: CompileRequest) -> None:
    calibration = request.calibration
    pair = [name for name in (request.pair.model, request.pair.head) if name not in PAIRS]  # a short name is no folder
    require_disjoint(request.out, *pair, calibration.scales, calibration.data)
    require_publishable(request.out)
