"""``peagle-compile build``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import columns, emit, interruptible, note, size
from .common import Draft, DraftRevision, DryRun, Force, Gpu, Json, MaxSeqLen, Model, ModelArgument, Revision, one_model

if TYPE_CHECKING:
    from ..build import BuildResult

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
    backend: Annotated[str, typer.Option(help="What will run the engine.")] = "onnxruntime",
    precision: Annotated[str, typer.Option(help="Precision recipe.")] = "fp32",
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens drafted per round. (default: the fastest one, measured)", show_default=False),
    ] = None,
    max_seq_len: MaxSeqLen = 2048,
    lowering: Annotated[str, typer.Option(help="ort: fastest on ONNX Runtime; std: standard ONNX only.")] = "ort",
    dry_run: DryRun = False,
    gpu: Gpu = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Build an engine from a model and its P-EAGLE drafter.

    An interrupted build leaves no engine and resumes; one that is repeated skips what has not changed.

    Example: peagle-compile build --model demo --out demo-engine
    """
    chosen = one_model(name, model)
    if dry_run:
        from ..plans.dry_run import print_plan

        print_plan(
            chosen,
            draft=draft,
            revision=revision,
            lowering=lowering,
            precision=precision,
            max_seq_len=max_seq_len,
            num_speculative_tokens=num_speculative_tokens,
            gpu=gpu,
            as_json=as_json,
        )
        return
    from ..build import build as run_build
    from ..options import BuildOptions
    from ..progress import shown

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
        lowering=lowering,  # type: ignore[arg-type]  # checked with the other options
        force=force,
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
    report = result.report
    reused = [phase["phase"] for phase in report["phases"] if phase.get("reused")]
    rows = [
        ("engine", str(result.path)),
        ("weights", ", ".join(f"{name} {size(count)}" for name, count in report["bytes"].items())),
        ("drafts per round", report["num_speculative_tokens"]),
        ("time", f"{sum(phase['seconds'] for phase in report['phases']):.1f} s"),
    ]
    if "choose_k" in report:
        rows.append(("speed", f"{report['choose_k']['speedup']:.2f}x plain decoding, measured while choosing K"))
    if reused:
        rows.append(("unchanged", ", ".join(reused)))
    rows.append(("next", f"peagle-compile run {result.path} --prompt 'def gcd(a, b):' --stats"))
    return columns(rows)
