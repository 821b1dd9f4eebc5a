"""``peagle-compile build``."""

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
    Json,
    KvCacheDtype,
    LmHeadPrecision,
    MaxSeqLen,
    Model,
    ModelArgument,
    PlanGpus,
    Revision,
    ScalesFolder,
    one_model,
)

if TYPE_CHECKING:
    from ..pipeline.build import BuildResult

_RESUME = "nothing was published; finished steps are kept, and the same command goes on from there"


@interruptible(_RESUME)
def build(
    name: ModelArgument = None,
    model: Model = None,
    draft: Draft = None,
    revision: Revision = None,
    draft_revision: DraftRevision = None,
    out: Annotated[
        Path | None, typer.Option(help="Engine folder to make. (default: MODEL-engine)", show_default=False)
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="What will run the engine: onnxruntime, tensorrt-rtx (its plans are built on any machine) or tensorrt "
            "(on the GPU that will run it). (default: what this machine can run)",
            show_default=False,
        ),
    ] = None,
    gpu: PlanGpus = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Recipe: fp32, fp16, bf16, fp8, mxfp8, int8 or int4. fp8, and int8 for TensorRT, calibrate first. "
            "(default: fp32 for onnxruntime; for TensorRT fp8 from an FP8 checkpoint with scales for its inputs, else "
            "bf16 where the checkpoint has any, else fp16)",
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
        typer.Option(help="Tokens drafted per round. (default: the fastest one, measured)", show_default=False),
    ] = None,
    max_seq_len: MaxSeqLen = 2048,
    lowering: Annotated[
        str | None,
        typer.Option(
            help="For onnxruntime: ort is fastest, std has standard ONNX only. (default: ort)", show_default=False
        ),
    ] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(help="TensorRT: rows that decode together. (default: 8)", show_default=False)
    ] = None,
    optimization_level: Annotated[
        int | None, typer.Option(help="TensorRT: 0 builds fastest, 5 searches longest.", show_default=False)
    ] = None,
    workspace_gb: Annotated[
        float | None, typer.Option(help="TensorRT: GPU memory that a layer may work in.", show_default=False)
    ] = None,
    weight_streaming: Annotated[
        bool, typer.Option("--weight-streaming", help="TensorRT: weights may stay in host memory.")
    ] = False,
    dry_run: DryRun = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Build an engine from a model and its P-EAGLE drafter.

    An interrupted build leaves no engine and resumes; one that is repeated skips what has not changed.

    Example: peagle-compile build --model demo --out demo-engine
    """
    from ..precision.calibration.ranges import RangesFrom
    from ..precision.recipes import Overrides

    chosen = one_model(name, model)
    overrides = Overrides(kv_cache_dtype, lm_head_precision, draft_precision, tuple(exclude or ()))
    ranges = RangesFrom(calib_data, calib_method, calib_samples, calib_length, scales)
    if dry_run:
        from ..forecast.dry_run import Asked, print_plan
        from ..request.backend import require_known

        require_known(backend)
        planned = "tensorrt" if backend and backend.startswith("tensorrt") else lowering
        planned = "ort" if planned is None and backend is not None else planned
        asked = Asked(
            chosen, draft, revision, planned, precision, max_seq_len, num_speculative_tokens, gpu, overrides, ranges,
            builds=True,
        )  # fmt: skip
        print_plan(asked, as_json=as_json)
        return
    from ..console.progress import shown
    from ..pipeline.build import build as run_build
    from ..request.options import BuildOptions

    options = BuildOptions(
        model=chosen,
        draft=draft,
        revision=revision,
        draft_revision=draft_revision,
        out=out or Path(f"{Path(os.path.abspath(chosen)).name}-engine"),
        backend=backend,
        precision=precision,
        num_speculative_tokens=num_speculative_tokens,
        max_seq_len=max_seq_len,
        lowering=lowering,
        force=force,
        overrides=overrides,
        ranges=ranges,
        gpus=tuple(each.strip() for each in gpu.split(",")) if gpu else (),
        max_batch_size=max_batch_size,
        optimization_level=optimization_level,
        workspace_gb=workspace_gb,
        weight_streaming=weight_streaming,
    )
    with shown() as progress:
        result = run_build(options, progress)
    for warning in result.report["warnings"]:
        note(f"warning: {warning}")
    if as_json:
        emit({"engine": str(result.path), **result.report})
    else:
        print(_summary(result))


def _summary(result: BuildResult) -> str:
    from .precision_rows import precision_rows

    report = result.report
    reused = [phase["phase"] for phase in report["phases"] if phase.get("reused")]
    gpus = ", ".join(result.manifest.backend.gpus)
    rows = [
        ("engine", f"{result.path}, for {result.manifest.backend.name}" + (f" on {gpus}" if gpus else "")),
        *precision_rows(result.manifest.precision, report),
        ("plans" if gpus else "weights", ", ".join(f"{name} {size(count)}" for name, count in report["bytes"].items())),
        ("drafts per round", report["num_speculative_tokens"]),
        ("time", f"{sum(phase['seconds'] for phase in report['phases']):.1f} s"),
    ]
    if "choose_k" in report:
        rows.append(("speed", f"{report['choose_k']['speedup']:.2f}x plain decoding, measured while choosing K"))
    if reused:
        rows.append(("unchanged", ", ".join(reused)))
    here = "choose_k" in report or not gpus
    command = f"run {result.path} --prompt 'def gcd(a, b):' --stats" if here else f"inspect {result.path}"
    rows.append(("next", f"peagle-compile {command}"))
    return columns(rows)
