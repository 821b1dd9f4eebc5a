"""The refusals that need nothing but the request: what each verb asks of it before anything is read."""

from __future__ import annotations

from ...engines.draft_methods import headless_named
from ...graphs.lowering import Lowering
from ...plugins.errors import UsageError
from ...plugins.number_formats import FP8
from ..hardware.gpus import export_form, sm_names, sm_number
from ..precision.allowed_recipes import lowering_for, require_known
from ..precision.decide_recipe import decide
from ..store.destination import require_apart, require_publishable
from .experts_form import as_asked
from .request import CompileRequest


def check_build(request: CompileRequest) -> None:
    """Raise ``UsageError`` for what no build can be made of."""
    request.backend.check_known()
    require_known(request.precision.name)
    request.precision.check()
    request.calibration.check()
    request.backend.check_lowering()
    request.sizes.check(
        why="it is the number of tokens drafted per round",
        fix="leave it out and the build measures which is fastest here; 0 is for plain decoding, as --draft none",
    )
    _check_drafter(request)
    request.plans.check()
    _check_out(request)


def check_export(request: CompileRequest) -> None:
    """Raise ``UsageError`` for what no export can be made of."""
    require_known(request.precision.name)
    request.precision.check()
    decide(request.precision, export_lowering(request), gpus=sm_names(request.backend.gpus))
    request.calibration.check()
    request.sizes.check(fix="it is the number of tokens drafted per round; the caches have room for two rounds of them")
    _check_drafter(request)
    _check_out(request)


def export_lowering(request: CompileRequest) -> Lowering:
    """What an export is for: of TensorRT's forms that of the GPU named. Raises ``UsageError`` for what there is not."""
    return as_asked(_form_of_export(request), request.backend.experts)


def _form_of_export(request: CompileRequest) -> Lowering:
    asked, gpus = request.backend.lowering, sm_names(request.backend.gpus)
    if not gpus:
        return lowering_for(asked or "ort")
    best = lowering_for(export_form([*map(sm_number, gpus)]))
    lowering = best if asked in (None, "tensorrt") else lowering_for(asked)
    if not lowering.is_tensorrt:
        raise UsageError(
            f"--gpu {','.join(request.backend.gpus)} does not go with --for {asked}",
            why="what runs on a GPU here is TensorRT",
            fix="leave one of the two out, or `--for tensorrt`",
        )
    if lowering.has_expert_layer and not best.has_expert_layer:
        raise UsageError(
            f"--for {asked} does not go with --gpu {','.join(request.backend.gpus)}",
            why="TensorRT makes no code for its expert layer there",
            fix="`--for tensorrt` is the form that is built for it",
        )
    return lowering


def check_quantize(request: CompileRequest) -> None:
    """Raise ``UsageError`` for what no FP8 checkpoint can be made of."""
    require_known(request.precision.name)
    if request.precision.name not in (None, FP8.name):
        raise UsageError(
            f"no {request.precision.name} checkpoints are made",
            why="fp8 is the format that is written; other recipes round the weights when an engine is built",
            fix=f"leave --precision out, or `peagle-compile build --precision {request.precision.name}`",
        )
    if request.precision.kv_cache not in (None, FP8.name):
        raise UsageError(
            f"--kv-cache-dtype {request.precision.kv_cache} cannot be stored",
            why="scales of cached keys and values are for fp8",
            fix="--kv-cache-dtype fp8, or leave it out",
        )
    request.calibration.check()
    require_apart(request.out, request.pair.model, request.calibration.scales)
    require_publishable(request.out)


def _check_drafter(request: CompileRequest) -> None:
    """Refuse taps that are none, drafts where there are to be none, and what is said of a drafter that is left out."""
    request.head.check()
    k, said = request.sizes.num_speculative_tokens, request.pair.draft
    if k and (method := headless_named(said)) and not method.drafts:
        raise UsageError(
            f"--draft {said} and --num-speculative-tokens {k} contradict each other",
            why=f"{said} is plain decoding, which drafts no tokens",
            fix="leave one of the two out, or `--draft ngram` for drafts without a head",
        )
    if said is not None and request.pair.head is None and request.of_head():
        raise UsageError(
            f"{', '.join(request.of_head())} says nothing with --draft {said}",
            why="there is no head then",
            fix=f"leave it out, or name a head in place of {said} (a folder of that name is ./{said})",
        )
    if request.headless and request.precision.drafter is not None:
        spelled = f"--draft {said}" if said is not None and request.pair.head is None else "--num-speculative-tokens 0"
        raise UsageError(
            f"--draft-precision {request.precision.drafter} says nothing with {spelled}",
            why="there is no drafter then",
            fix="leave one of the two out",
        )


def _check_out(request: CompileRequest) -> None:
    require_apart(request.out, request.pair.model, request.pair.head)
    require_publishable(request.out)
