"""``peagle-compile quantize``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console.text import columns, emit, interruptible, note, size
from .common import Force, Json, Model, ModelArgument, Revision, one_model

if TYPE_CHECKING:
    from ..pipeline.quantize import QuantizeResult

_RESUME = "nothing was published; calibrated layers are kept, and the same command goes on from there"


@interruptible(_RESUME)
def quantize(
    name: ModelArgument = None,
    model: Model = None,
    revision: Revision = None,
    out: Annotated[Path | None, typer.Option(help="Folder to make. (default: MODEL-fp8)", show_default=False)] = None,
    calib_data: Annotated[
        Path | None,
        typer.Option(
            help="JSON Lines to calibrate with: text, messages or input_ids in each line. (default: the bundled "
            "samples of code and chat)",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How ranges of activations are chosen: max, percentile (99.99) or mse. (default: max)",
            show_default=False,
        ),
    ] = None,
    num_samples: Annotated[
        int | None, typer.Option(min=1, help="How many samples at most. (default: 128)", show_default=False)
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Longest sample, in tokens. (default: 512)", show_default=False)
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Modules to leave wide, for example 'layers.0.*'. May be given several times. The head, the "
            "embedding, routers and norms always are.",
            show_default=False,
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        str | None,
        typer.Option(help="fp8: store scales for cached keys and values as well. (default: none)", show_default=False),
    ] = None,
    scales: Annotated[
        Path | None,
        typer.Option(
            help="Ranges of an earlier run (the folder calibration/ of what it made), instead of a calibration.",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make an FP8 checkpoint of a BF16, FP16 or FP32 one, in the format of NVIDIA ModelOpt, to build from.

    Calibrates layer by layer, so that one layer's weights are in memory. The drafter is not quantised.

    Example: peagle-compile quantize --model demo --out demo-fp8
    """
    chosen = one_model(name, model)
    from ..console.progress import shown
    from ..pipeline.quantize import QuantizeOptions
    from ..pipeline.quantize import quantize as run_quantize

    options = QuantizeOptions(
        model=chosen,
        out=out or Path(f"{Path(os.path.abspath(chosen)).name}-fp8"),
        revision=revision,
        calib_data=calib_data,
        method=method,
        num_samples=num_samples,
        max_length=max_length,
        exclude=tuple(exclude or ()),
        kv_cache_dtype=kv_cache_dtype,
        scales=scales,
        force=force,
    )
    with shown() as progress:
        result = run_quantize(options, progress)
    for warning in result.report["warnings"]:
        note(f"warning: {warning}")
    if as_json:
        emit({"checkpoint": str(result.path), **result.report})
    else:
        print(_summary(result))


def _summary(result: QuantizeResult) -> str:
    from ...plugins.problems import listed
    from ..checkpoints.registry import has_drafter

    report = result.report
    calibration = report["calibration"]
    draft = report["model"] if has_drafter(report["model"]) else "HEAD"
    rows = [
        ("checkpoint", f"{result.path}, {size(report['bytes'])} (from {size(report['source_bytes'])})"),
        ("FP8", f"{report['fp8_matrices']} matrices, {size(report['fp8_bytes'])}"),
        ("left wide", listed(report["exclude_modules"])),
        (
            "calibrated",
            f"{calibration['method']['name']} over {calibration['num_tokens']} tokens in {calibration['num_samples']} "
            f"samples of {calibration['dataset']}",
        ),
        (
            "cached keys and values",
            f"scales for {report['kv_cache_dtype']}" if report["kv_cache_dtype"] else "no scales",
        ),
        ("time", f"{report['seconds']:.1f} s, peak memory {size(report['peak_rss_bytes'])}"),
        ("next", f"peagle-compile build --model {result.path} --draft {draft}"),
    ]
    return columns(rows)
