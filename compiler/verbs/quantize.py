"""``peagle-compile quantize``."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from ..console.printing import columns, emit, interruptible, note, size
from ..request.request import CompileRequest
from ..request.verb_options import QUANTIZE
from .flags.options_signature import takes_options
from .flags.shared_flags import Force, IgnoreLimits, Json
from .flags.verbosity import Verbosity, with_verbosity

if TYPE_CHECKING:
    from ..pipeline.quantize import QuantizeResult

_RESUME = "nothing was published; calibrated layers are cached, and the same command resumes from them"


@interruptible(_RESUME)
@takes_options(QUANTIZE)
@with_verbosity
def quantize(
    request: CompileRequest,
    verbosity: Verbosity,
    ignore_limits: IgnoreLimits = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Quantize a BF16, FP16 or FP32 checkpoint to FP8, in the format of NVIDIA ModelOpt.

    Calibration runs layer by layer, with the weights of one layer in memory. The drafter is not quantized.

    Example: peagle-compile quantize --model demo --out demo-fp8
    """
    from ..pipeline.quantize import quantize as run_quantize

    with verbosity.work() as progress:
        result = run_quantize(replace(request, force=force, ignore_limits=ignore_limits), progress)
    for warning in result.report["warnings"]:
        note(f"warning: {warning}")
    if as_json:
        emit({"checkpoint": str(result.path), **result.report})
    else:
        print(_summary(result))


def _summary(result: QuantizeResult) -> str:
    from ...plugins.problems import listed
    from ..checkpoints.resolve_names import has_drafter

    report = result.report
    calibration = report["calibration"]
    draft = report["model"] if has_drafter(report["model"]) else "HEAD"
    rows = [
        ("checkpoint", f"{result.path}, {size(report['bytes'])} (from {size(report['source_bytes'])})"),
        ("FP8", f"{report['fp8_matrices']} matrices, {size(report['fp8_bytes'])}"),
        ("not quantized", listed(report["exclude_modules"])),
        (
            "calibrated",
            f"{calibration['method']['name']} over {calibration['num_tokens']} tokens in {calibration['num_samples']} "
            f"samples of {calibration['dataset']}",
        ),
        (
            "KV cache",
            f"scales for {report['kv_cache_dtype']}" if report["kv_cache_dtype"] else "no scales",
        ),
        ("time", f"{report['seconds']:.1f} s, peak memory {size(report['peak_rss_bytes'])}"),
        ("next", f"peagle-compile build --model {shlex.quote(str(result.path))} --draft {draft}"),
    ]
    return columns(rows)
