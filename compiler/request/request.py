"""The request of ``build``, ``export`` and ``quantize``: all options in groups.

Each option is declared once, at the field that stores it; ``verb_options`` lists the options of each verb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...engines.draft_methods import (
    METHODS,
    PLAIN,
    DraftMethod,
    head_named,
    head_titles,
    headless_named,
    names_for_builds,
)
from ...plugins.errors import UsageError
from ...plugins.graph_contract import MAX_DRAFTS
from ...plugins.tensorrt.products import PRODUCTS
from ..console.option_fields import option, option_of
from ..precision.calibration.calibration_options import CalibrationOptions
from ..precision.precision_options import PrecisionOptions
from .speed_options import SpeedOptions

ONNXRUNTIME = "onnxruntime"
BACKENDS = (ONNXRUNTIME, *PRODUCTS)
DEFAULT_BATCH_SIZE = 8
MAX_BATCH_SIZE = 256  # the kernels are tested up to here
CPU_LOWERINGS = ("ort", "cpu", "std")


@dataclass(frozen=True)
class ModelRef:
    """The names of the target and its drafter, as ``checkpoints.resolve_names`` reads them."""

    model: str = option(
        "--model",
        "Target model: a short name (see `models`), a checkpoint folder, a GGUF file, or OWNER/NAME on the Hugging "
        "Face Hub.",
        "",
        argument="MODEL",
    )
    draft: str | None = option(
        "--draft",
        f"Draft head ({' or '.join(head_titles().values())}), as a folder, OWNER/NAME or a short name; or a draft "
        f"method: {', '.join(f'{name} ({METHODS[name].help})' for name in names_for_builds())}. The methods "
        f"{' and '.join(head_titles())} use the head known for the target. (default: the head known for the target)",
    )
    revision: str | None = option("--revision", "Branch, tag or commit of the target. (default: the newest)")
    draft_revision: str | None = option("--draft-revision", "Branch, tag or commit of the head. (default: the newest)")

    @property
    def head(self) -> str | None:
        """The name of the head; None if none was given."""
        return head_named(self.draft)


@dataclass(frozen=True)
class BackendOptions:
    """The backend that runs the engine; None and no GPU select one for this machine.

    ``lowering`` is for ONNX Runtime.
    """

    name: str | None = option(
        "--backend",
        "Runtime of the engine: onnxruntime, tensorrt-rtx (builds on any machine) or tensorrt (builds on the GPU that "
        "runs it). (default: tensorrt if it is installed and this machine has a data center GPU; tensorrt-rtx "
        "if it is installed and --gpu names RTX GPUs; onnxruntime without a GPU, or for a precision that only "
        "onnxruntime supports; otherwise required)",
    )
    gpus: tuple[str, ...] = option(
        "--gpu",
        "GPUs or architectures to build TensorRT plans for, such as rtx-5090 or sm_89,sm_120. With --dry-run, also "
        "report whether the engine fits each GPU.",
        (),
        split=True,
        name="gpus",
    )
    experts: str | None = option(
        "--experts",
        "Routed experts on TensorRT: layer, layer-one-scale or dense. layer uses TensorRT's own layer (SM 100, "
        "103 and 110), which computes only the experts that the router chose for each token. layer-one-scale "
        "does the same with one FP8 scale for all experts of a layer, in case TensorRT does not accept one "
        "scale per expert. dense computes every expert for every token. All three dequantize experts that are "
        "stored in MXFP4. (default: experts in MXFP4 stay as stored and use this project's kernels; other "
        "experts use layer if it supports the model and the GPU, else dense)",
    )
    lowering: str | None = option(
        "--lowering",
        "Kernels: cpu uses this project's kernels, which the build compiles; ort uses ONNX Runtime's kernels; "
        "std uses only standard operators. (default: cpu if a C++ compiler is installed; ort otherwise, and "
        "with fp8 and mxfp8)",
    )

    def check_known(self) -> None:
        """Raise ``UsageError`` for a backend that does not exist."""
        if self.name is not None and self.name not in BACKENDS:
            raise UsageError(
                f"unknown backend {self.name!r}",
                why=f"the valid values are {', '.join(BACKENDS)}",
                fix="omit --backend, or run `peagle-compile doctor` to see what this machine can build and run",
            )

    def check_lowering(self) -> None:
        """Raise ``UsageError`` for a lowering that is not an option of builds."""
        if self.lowering is not None and self.lowering not in CPU_LOWERINGS:
            raise UsageError(
                f"unknown lowering {self.lowering!r}",
                why=f"the valid values are {', '.join(CPU_LOWERINGS)}",
                fix="use one of these, or omit --lowering; TensorRT has its own lowering",
            )


@dataclass(frozen=True)
class SizeOptions:
    """Sizes of the caches. A build without ``num_speculative_tokens`` measures it; 0 disables drafting."""

    num_speculative_tokens: int | None = option(
        "--num-speculative-tokens",
        "Tokens drafted per round; 0 is the same as --draft none. (default: adaptive, starting from the fastest number "
        "measured by the build, or from the head's trained depth if the build machine cannot run the engine)",
    )
    max_seq_len: int | None = option(
        "--max-seq-len",
        "Maximum length of prompt plus output, in tokens; the KV caches grow with it. (default: 2048; on "
        "TensorRT, up to 32768 if the model and, at --max-batch-size, the GPU's memory allow)",
    )

    def check(self, *, why: str = "", fix: str) -> None:
        """Raise ``UsageError`` for an invalid size; ``why`` and ``fix`` are for a negative number of drafts."""
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 0:
            raise UsageError(f"--num-speculative-tokens {self.num_speculative_tokens} is below 0", why=why, fix=fix)
        if self.num_speculative_tokens is not None and self.num_speculative_tokens > MAX_DRAFTS:
            raise UsageError(
                f"--num-speculative-tokens {self.num_speculative_tokens} is above {MAX_DRAFTS}",
                why=f"the kernels process at most {MAX_DRAFTS + 1} columns per round: the drafts and one more token",
                fix=f"use at most {MAX_DRAFTS}, or omit the option to let the build choose the fastest number",
            )
        if self.max_seq_len is not None and self.max_seq_len < 1:
            raise UsageError(f"--max-seq-len {self.max_seq_len} is below 1", fix="use 1 or more, or omit the option")


@dataclass(frozen=True)
class HeadOptions:
    """Options that override the head's configuration."""

    taps: tuple[str, ...] = option(
        "--taps",
        "Target layers whose inputs the head reads (auxiliary hidden-state layers), such as 2,24,45. (default: from "
        "the head's config.json)",
        (),
        split=True,
    )
    mask_token_id: int | None = option(
        "--mask-token-id", "Placeholder token id of the head. (default: from its config.json)", minimum=0
    )

    def check(self) -> None:
        """Raise ``UsageError`` for taps that are not layer ids."""
        if not all(text.isdecimal() and len(text) < 10 for text in self.taps):
            raise UsageError(
                f"--taps {','.join(self.taps)}: invalid layer ids",
                why="taps are numbers of target layers, counted from 0",
                fix="use layer numbers such as --taps 2,24,45",
            )

    def given_flags(self) -> list[str]:
        """The flags that were given."""
        return _given(self)

    def over(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the head's configuration with these overrides."""
        from ...graphs.drafters import stating

        return stating(config, self.layers, self.mask_token_id)

    @property
    def layers(self) -> list[int]:
        """The taps as numbers; empty if none were given."""
        return [int(text) for text in self.taps]


@dataclass(frozen=True)
class PlanOptions:
    """Options of TensorRT plans; None selects the default."""

    max_batch_size: int | None = option(
        "--max-batch-size", "Maximum number of requests decoded together (TensorRT only). (default: 8)"
    )
    optimization_level: int | None = option(
        "--optimization-level",
        "Builder optimization level, from 0 (fastest build) to 5 (longest search). (default: TensorRT's own)",
    )
    workspace_gb: float | None = option("--workspace-gb", "GPU workspace limit per layer, in GB. (default: no limit)")

    def given_flags(self) -> list[str]:
        """The flags that were given."""
        return _given(self)

    def check(self) -> None:
        """Raise ``UsageError`` for values that TensorRT or the kernels do not support."""
        _between("--max-batch-size", self.max_batch_size, 1, MAX_BATCH_SIZE, "the kernels support no larger batch")
        _between("--optimization-level", self.optimization_level, 0, 5, "TensorRT's builder has only these levels")
        if self.workspace_gb is not None and not 0 < self.workspace_gb < float("inf"):
            raise UsageError(
                f"--workspace-gb {self.workspace_gb} is not a positive size",
                fix="use a positive number, or omit the option for no limit",
            )


@dataclass(frozen=True)
class CompileRequest:
    """All options of a request; fields without an option of the verb keep their defaults."""

    pair: ModelRef
    out: Path = option("--out", "Folder to create.", Path())
    source: Path | None = option(
        "--from",
        "Build from an export (`export --for tensorrt --gpu NAME`) instead of a model, on the GPU host or, with "
        "TensorRT-RTX, on any machine. Requires no checkpoints, torch or transformers.",
        name="from_export",
    )
    backend: BackendOptions = field(default=BackendOptions())
    precision: PrecisionOptions = field(default=PrecisionOptions())
    calibration: CalibrationOptions = field(default=CalibrationOptions())
    sizes: SizeOptions = field(default=SizeOptions())
    plans: PlanOptions = field(default=PlanOptions())
    head: HeadOptions = field(default=HeadOptions())
    speed: SpeedOptions = field(default=SpeedOptions())
    force: bool = False
    ignore_limits: bool = False

    @property
    def headless(self) -> DraftMethod | None:
        """The draft method if it needs no head, else None; K = 0 always means plain decoding."""
        return PLAIN if self.sizes.num_speculative_tokens == 0 else headless_named(self.pair.draft)

    @property
    def drafts(self) -> bool:
        """True unless the engine only does plain decoding."""
        return self.headless is None or self.headless.drafts

    @property
    def requested_drafts(self) -> int | None:
        """The requested number of speculative tokens; None if the build measures it."""
        return self.sizes.num_speculative_tokens if self.drafts else 0

    def of_head(self) -> list[str]:
        """Return the given flags that configure a head without naming it."""
        revision = self.pair.draft_revision
        return [*([f"--draft-revision {revision}"] if revision is not None else []), *self.head.given_flags()]

    def unused(self) -> list[str]:
        """List warnings for given options that have no effect."""
        flags = [f"--draft {self.pair.draft}"] if self.pair.draft not in (None, PLAIN.name) else []
        flags += self.of_head()
        if self.drafts or not flags:
            return []
        return [f"{', '.join(flags)} has no effect with --num-speculative-tokens 0"]


def _given(options: PlanOptions | HeadOptions) -> list[str]:
    return [option_of(each).flag for each in fields(options) if getattr(options, each.name) != each.default]


def _between(flag: str, value: int | None, minimum: int, maximum: int, why: str) -> None:
    if value is not None and not minimum <= value <= maximum:
        raise UsageError(
            f"{flag} {value} is not between {minimum} and {maximum}",
            why=why,
            fix=f"use a value in this range, or omit {flag}",
        )
