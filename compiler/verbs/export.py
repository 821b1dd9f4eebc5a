"""``peagle-compile export``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console.text import columns, emit, interruptible, note, size
from .common import (
    CalibData,
    CalibLength,
    CalibMethod,
    CalibSamples,
    Draft,
    DraftPrecision,
    DraftRevision,
    DryRun,
    Exclude,
    Force,
    Gpu,
    Json,
    KvCacheDtype,
    LmHeadPrecision,
    MaxSeqLen,
    Model,
    ModelArgument,
    Revision,
    ScalesFolder,
    one_model,
)

if TYPE_CHECKING:
    from ..pipeline.export import ExportResult

_RESUME = "nothing was published; finished steps are kept, and the same command goes on from there"


@interruptible(_RESUME)
def export(
    name: ModelArgument = None,
    model: Model = None,
    draft: Draft = None,
    revision: Revision = None,
    draft_revision: DraftRevision = None,
    out: Annotated[Path | None, typer.Option(help="Folder to make. (default: MODEL-onnx)", show_default=False)] = None,
    lowering: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="What will run the graphs: ort, tensorrt, or std (standard operators only). (default: ort; with "
            "--dry-run --gpu, tensorrt)",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Recipe: fp32, fp16, bf16, fp8, mxfp8, int8 or int4. fp8, and int8 for TensorRT, calibrate first. "
            "(default: fp32 for ort and std, bf16 for tensorrt)",
            show_default=False,
        ),
    ] = None,
    kv_cache_dtype: KvCacheDtype = None,
    lm_head_precision: LmHeadPrecision = None,
    draft_precision: DraftPrecision = None,
    exclude: Exclude = None,
    calib_data: CalibData = None,
    calib_method: CalibMethod = None,
    calib_samples: CalibSamples = None,
    calib_length: CalibLength = None,
    scales: ScalesFolder = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(help="Drafts that the caches have room for. (default: the trained depth)", show_default=False),
    ] = None,
    max_seq_len: MaxSeqLen = 2048,
    dry_run: DryRun = False,
    gpu: Gpu = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a model and its drafter as ONNX graphs with external data, to keep or to build from.

    Each gets semantic.onnx (one node per meaning, operators of the domain peagle) and model.onnx (lowered for what will
    run it); both share one file of weights.

    Example: peagle-compile export --model demo --out demo-onnx
    """
    from ..precision.calibration.ranges import RangesFrom
    from ..precision.recipes import Overrides

    chosen = one_model(name, model)
    overrides = Overrides(kv_cache_dtype, lm_head_precision, draft_precision, tuple(exclude or ()))
    ranges = RangesFrom(calib_data, calib_method, calib_samples, calib_length, scales)
    if dry_run:
        from ..forecast.dry_run import Asked, print_plan

        asked = Asked(
            chosen, draft, revision, lowering, precision, max_seq_len, num_speculative_tokens, gpu, overrides, ranges
        )  # fmt: skip
        print_plan(asked, as_json=as_json)
        return
    from ..console.progress import shown
    from ..pipeline.export import ExportOptions
    from ..pipeline.export import export as run_export
    from ..precision.legal import lowering_for

    options = ExportOptions(
        model=chosen,
        out=out or Path(f"{Path(os.path.abspath(chosen)).name}-onnx"),
        draft=draft,
        revision=revision,
        draft_revision=draft_revision,
        lowering=lowering_for(lowering or "ort"),
        precision=precision,
        num_speculative_tokens=num_speculative_tokens,
        max_seq_len=max_seq_len,
        force=force,
        overrides=overrides,
        ranges=ranges,
    )
    with shown() as progress:
        result = run_export(options, progress)
    for warning in result.report["warnings"]:
        note(f"warning: {warning}")
    if as_json:
        emit({"export": str(result.path), **result.report})
    else:
        print(_summary(result))


def _summary(result: ExportResult) -> str:
    from .precision_rows import precision_rows

    report = result.report
    reused = [phase["phase"] for phase in report["phases"] if phase.get("reused")]
    stored = ", ".join(
        f"{name} {size(count)} ({report['checkpoint_format'][name]})"
        for name, count in report["checkpoint_bytes"].items()
    )
    rows = [
        ("export", f"{result.path}, for {report['for']}"),
        *precision_rows(report["recipe"], report),
        ("checkpoints", stored),
        ("graphs and weights", ", ".join(f"{name} {size(count)}" for name, count in report["bytes"].items())),
        (
            "peak memory",
            f"{size(report['peak_rss_bytes'])}, {size(report['peak_rss_beyond_imports_bytes'])} beyond the imports",
        ),
        ("time", f"{report['seconds']:.1f} s"),
    ]
    if reused:
        rows.append(("unchanged", ", ".join(reused)))
    return columns(rows)
