"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...plugins.errors import UsageError

ModelArgument = Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False)]
Model = Annotated[
    str | None,
    typer.Option(
        help="The target: a short name (see `models`), a checkpoint folder, or OWNER/NAME of the Hugging Face Hub.",
        show_default=False,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        help="The P-EAGLE head: a folder, OWNER/NAME, or a short name. Short names bring theirs.", show_default=False
    ),
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of the target. (default: the newest)", show_default=False)
]
DraftRevision = Annotated[str | None, typer.Option(help="The same for the P-EAGLE head.", show_default=False)]
MaxSeqLen = Annotated[int, typer.Option(help="Longest prompt and output together, in tokens.")]
Force = Annotated[bool, typer.Option("--force", help="Make every step anew.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan (weights, caches, nodes, memory, time) and write nothing.")
]
Gpu = Annotated[
    str | None,
    typer.Option(help="With --dry-run: whether it fits this GPU, for example b200.", show_default=False),
]
PlanGpus = Annotated[
    str | None,
    typer.Option(
        help="What TensorRT plans are for: GPUs or architectures, for example rtx-5090 or sm_89,sm_120. With "
        "--dry-run: whether it fits this GPU.",
        show_default=False,
    ),
]
KvCacheDtype = Annotated[
    str | None,
    typer.Option(
        help="fp8: keys and values are cached in it (TensorRT). (default: as the model computes)", show_default=False
    ),
]
LmHeadPrecision = Annotated[
    str | None,
    typer.Option(help="Of the head's matrix: fp8, mxfp8, int8 or int4. (default: stays wide)", show_default=False),
]
DraftPrecision = Annotated[
    str | None,
    typer.Option(
        help="Of the matrices of the drafter's layers, which are multiplied wide: int8, int4, or for onnxruntime fp8. "
        "(default: wide)",
        show_default=False,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        help="Modules of the target to leave wide, for example 'layers.0.*'. May be given several times.",
        show_default=False,
    ),
]
CalibData = Annotated[
    Path | None,
    typer.Option(
        help="JSON Lines to calibrate with: text, messages or input_ids in each line. (default: the bundled samples of "
        "code and chat)",
        show_default=False,
    ),
]
CalibMethod = Annotated[
    str | None,
    typer.Option(
        help="How ranges of activations are chosen: max, percentile (99.99) or mse. (default: max)", show_default=False
    ),
]
CalibSamples = Annotated[
    int | None, typer.Option(min=1, help="How many samples at most. (default: 128)", show_default=False)
]
CalibLength = Annotated[
    int | None, typer.Option(min=1, help="Longest sample, in tokens. (default: 512)", show_default=False)
]
ScalesFolder = Annotated[
    Path | None,
    typer.Option(
        help="Ranges of an earlier calibration (the folder calibration/ of what it made), instead of a new one.",
        show_default=False,
    ),
]
EngineFolder = Annotated[Path, typer.Argument(metavar="ENGINE", help="Engine folder made by `peagle-compile build`.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, and nothing else.")]
_THREADS = "CPU threads. (default: one for a small model, else one per core)"
Threads = Annotated[int | None, typer.Option(min=1, help=_THREADS, show_default=False)]


def one_model(name: str | None, model: str | None) -> str:
    """MODEL and --model mean the same; one of them must be given."""
    if name is None and model is None:
        raise UsageError("no model was named", fix="for example `--model demo`")
    if name is not None and model is not None and name != model:
        raise UsageError(f"two models were named: {name} and {model}", fix="MODEL and --model mean the same: give one")
    return str(model or name)
