"""The refusals that need nothing but the request: what each verb asks of it before anything is read."""

from __future__ import annotations

from ...graphs.lowering import Lowering
from ...plugins.errors import UsageError
from ..precision.allowed_recipes import lowering_for, require_known
from ..precision.decide_recipe import decide
from ..store.destination import require_apart, require_publishable
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
        fix="leave it out and the build measures which is fastest here; 0 is for plain decoding, without a drafter",
    )
    _check_drafter(request)
    request.plans.check()
    _check_out(request)


def check_export(request: CompileRequest) -> None:
    """Raise ``UsageError`` for what no export can be made of."""
    require_known(request.precision.name)
    request.precision.check()
    decide(request.precision, export_lowering(request))
    request.calibration.check()
    request.sizes.check(fix="it is the number of tokens drafted per round; the caches have room for two rounds of them")
    _check_drafter(request)
    _check_out(request)


def export_lowering(request: CompileRequest) -> Lowering:
    """What an export is for. Raises ``UsageError`` for what there is no lowering for."""
    return lowering_for(request.backend.lowering or "ort")


def check_quantize(request: CompileRequest) -> None:
    """Raise ``UsageError`` for what no FP8 checkpoint can be made of."""
    require_known(request.precision.name)
    if request.precision.name not in (None, "fp8"):
        raise UsageError(
            f"no {request.precision.name} checkpoints are made",
            why="fp8 is the format that is written; other recipes round the weights when an engine is built",
            fix=f"leave --precision out, or `peagle-compile build --precision {request.precision.name}`",
        )
    if request.precision.kv_cache not in (None, "fp8"):
        raise UsageError(
            f"--kv-cache-dtype {request.precision.kv_cache} cannot be stored",
            why="scales of cached keys and values are for fp8",
            fix="--kv-cache-dtype fp8, or leave it out",
        )
    request.calibration.check()
    require_apart(request.out, request.pair.model, request.calibration.scales)
    require_publishable(request.out)


def _check_drafter(request: CompileRequest) -> None:
    """Refuse taps that are none, and types for a drafter that is left out."""
    request.head.check()
    if not request.sizes.drafts and request.precision.drafter is not None:
        raise UsageError(
            f"--draft-precision {request.precision.drafter} says nothing with --num-speculative-tokens 0",
            why="without drafts there is no drafter",
            fix="leave one of the two out",
        )


def _check_out(request: CompileRequest) -> None:
    require_apart(request.out, request.pair.model, request.pair.draft)
    require_publishable(request.out)
