"""What a user asked for: one request for every verb that makes something, in groups of options.

Each option is declared once, by the field that keeps it; ``verb_options`` lists which of them a verb has.
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
from ..console.option_fields import option, option_of
from ..precision.calibration.calibration_options import CalibrationAsked
from ..precision.precision_options import PrecisionAsked

ONNXRUNTIME = "onnxruntime"
BACKENDS = (ONNXRUNTIME, "tensorrt", "tensorrt-rtx")
DEFAULT_BATCH_SIZE = 8
MAX_BATCH_SIZE = 256  # the kernels are tested up to here
_LOWERINGS = ("ort", "cpu", "std")


@dataclass(frozen=True)
class ModelRef:
    """The target and its drafter by name, as ``checkpoints.resolve_names`` reads them."""

    model: str = option(
        "--model",
        "The target: a short name (see `models`), a checkpoint folder, a GGUF file, or OWNER/NAME of the Hugging Face "
        "Hub.",
        "",
        argument="MODEL",
    )
    draft: str | None = option(
        "--draft",
        f"The head, {' or '.join(head_titles().values())}: a folder, OWNER/NAME, or a short name; known targets bring "
        f"theirs. Or a draft method: {'; '.join(f'{name} is {METHODS[name].help}' for name in names_for_builds())}.",
    )
    revision: str | None = option("--revision", "Branch, tag or commit of the target. (default: the newest)")
    draft_revision: str | None = option("--draft-revision", "The same for the head.")

    @property
    def head(self) -> str | None:
        """The head that was named, if one was."""
        return head_named(self.draft)


@dataclass(frozen=True)
class BackendAsked:
    """What is to run the engine; None and no GPU leave it to this machine. ``lowering`` is for ONNX Runtime."""

    name: str | None = option(
        "--backend",
        "What will run the engine: onnxruntime, tensorrt-rtx (its plans are built on any machine) or tensorrt "
        "(on the GPU that will run it). (default: tensorrt on a data-centre GPU that has it, "
        "onnxruntime without a GPU; required otherwise)",
    )
    gpus: tuple[str, ...] = option(
        "--gpu",
        "What TensorRT plans are for: GPUs or architectures, for example rtx-5090 or sm_89,sm_120. With "
        "--dry-run: whether it fits this GPU.",
        (),
        split=True,
        name="gpus",
    )
    experts: str | None = option(
        "--experts",
        "TensorRT on SM 10.x: routed experts as its own layer, which computes those a token has, or dense: all of "
        "them. (default: layer, where it computes what the model needs)",
    )
    lowering: str | None = option(
        "--lowering",
        "For onnxruntime: cpu has our kernels, compiled by the build, ort its own, std standard ONNX only. "
        "(default: cpu, where a C++ compiler is)",
    )

    def check_known(self) -> None:
        """Raise ``UsageError`` for a backend that does not exist."""
        if self.name is not None and self.name not in BACKENDS:
            raise UsageError(
                f"the backend {self.name!r} does not exist",
                why=f"it is one of {', '.join(BACKENDS)}",
                fix="leave --backend out; `peagle-compile doctor` says what this machine can build and run",
            )

    def check_lowering(self) -> None:
        """Raise ``UsageError`` for a lowering that a build cannot be asked for."""
        if self.lowering is not None and self.lowering not in _LOWERINGS:
            raise UsageError(
                f"the lowering {self.lowering!r} does not exist",
                why=f"it is one of {', '.join(_LOWERINGS)}",
                fix="leave --lowering out; TensorRT has its own",
            )


@dataclass(frozen=True)
class SizeOptions:
    """What the caches must hold; a build without ``num_speculative_tokens`` measures it, with 0 it drafts nothing."""

    num_speculative_tokens: int | None = option(
        "--num-speculative-tokens",
        "Tokens drafted per round; 0 is the same as --draft none. (default: as many as pay, at first the fastest, "
        "measured)",
    )
    max_seq_len: int = option(
        "--max-seq-len", "Longest prompt and output together, in tokens; caches grow with it, as --dry-run shows.", 2048
    )

    def check(self, *, why: str = "", fix: str) -> None:
        """Raise ``UsageError`` for a size that cannot be; ``why`` and ``fix`` are about too few drafts."""
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 0:
            raise UsageError(f"--num-speculative-tokens {self.num_speculative_tokens} is below 0", why=why, fix=fix)
        if self.num_speculative_tokens is not None and self.num_speculative_tokens > MAX_DRAFTS:
            raise UsageError(
                f"--num-speculative-tokens {self.num_speculative_tokens} is above {MAX_DRAFTS}",
                why=f"the kernels look at {MAX_DRAFTS + 1} columns of a round, its drafts and the bonus token",
                fix="leave it out and the build measures which is fastest here, or give the depth that the head was "
                "trained for",
            )
        if self.max_seq_len < 1:
            raise UsageError(f"--max-seq-len {self.max_seq_len} is below 1", fix="2048 is the default")


@dataclass(frozen=True)
class HeadOptions:
    """What is said of the head in place of its configuration; what is left out is read there."""

    taps: tuple[str, ...] = option(
        "--taps",
        "Layers of the target that the head taps, for example 2,24,45. (default: what its config.json says)",
        (),
        split=True,
    )
    mask_token_id: int | None = option(
        "--mask-token-id", "The head's placeholder token. (default: what its config.json says)", least=0
    )

    def check(self) -> None:
        """Raise ``UsageError`` for taps that are no layers."""
        if not all(text.isdecimal() and len(text) < 10 for text in self.taps):
            raise UsageError(f"--taps {','.join(self.taps)} are no layers", fix="for example --taps 2,24,45")

    def given(self) -> list[str]:
        """The flags that were given."""
        return _given(self)

    def over(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The head's configuration with what was said."""
        from ...graphs.drafters import stating

        return stating(config, [int(text) for text in self.taps], self.mask_token_id)


@dataclass(frozen=True)
class PlanAsked:
    """What only TensorRT plans have; None leaves it to TensorRT, or to what stands in the help."""

    max_batch_size: int | None = option("--max-batch-size", "TensorRT: rows that decode together. (default: 8)")
    optimization_level: int | None = option("--optimization-level", "TensorRT: 0 builds fastest, 5 searches longest.")
    workspace_gb: float | None = option("--workspace-gb", "TensorRT: GPU memory that a layer may work in.")

    def given(self) -> list[str]:
        """The flags that were given."""
        return _given(self)

    def check(self) -> None:
        """Raise ``UsageError`` for what TensorRT or our kernels do not take."""
        _between("--max-batch-size", self.max_batch_size, 1, MAX_BATCH_SIZE, "the rows that decode together")
        _between("--optimization-level", self.optimization_level, 0, 5, "TensorRT's builder has these levels")
        if self.workspace_gb is not None and not 0 < self.workspace_gb < float("inf"):
            raise UsageError(f"--workspace-gb {self.workspace_gb} is not a size", fix="leave it out for no limit")


@dataclass(frozen=True)
class CompileRequest:
    """Everything that was asked for; what a verb has no option for keeps its default."""

    pair: ModelRef
    out: Path = option("--out", "Folder to make.", Path())
    source: Path | None = option(
        "--from",
        "Go on from an export for TensorRT (`export --for tensorrt --gpu NAME`), in place of a model: on the host with "
        "the GPU, without its checkpoints, torch and transformers.",
        name="from_export",
    )
    backend: BackendAsked = field(default=BackendAsked())
    precision: PrecisionAsked = field(default=PrecisionAsked())
    calibration: CalibrationAsked = field(default=CalibrationAsked())
    sizes: SizeOptions = field(default=SizeOptions())
    plans: PlanAsked = field(default=PlanAsked())
    head: HeadOptions = field(default=HeadOptions())
    force: bool = False
    ignore_limits: bool = False

    @property
    def headless(self) -> DraftMethod | None:
        """The method that drafts without a head, None where a head does; K = 0 is plain decoding, whoever drafts."""
        return PLAIN if self.sizes.num_speculative_tokens == 0 else headless_named(self.pair.draft)

    @property
    def drafts(self) -> bool:
        """Whether anything is to draft."""
        return self.headless is None or self.headless.drafts

    @property
    def drafts_asked(self) -> int | None:
        """K, if it is not to be measured."""
        return self.sizes.num_speculative_tokens if self.drafts else 0

    def of_head(self) -> list[str]:
        """The flags given that are about a head and do not name it."""
        revision = self.pair.draft_revision
        return [*([f"--draft-revision {revision}"] if revision is not None else []), *self.head.given()]

    def unused(self) -> list[str]:
        """List what was named and is not read."""
        named = [f"--draft {self.pair.draft}"] if self.pair.draft not in (None, PLAIN.name) else []
        named += self.of_head()
        if self.drafts or not named:
            return []
        return [f"{', '.join(named)} was not read: with --num-speculative-tokens 0 nothing is drafted"]


def _given(options: PlanAsked | HeadOptions) -> list[str]:
    return [option_of(each).flag for each in fields(options) if getattr(options, each.name) != each.default]


def _between(flag: str, value: int | None, least: int, most: int, why: str) -> None:
    if value is not None and not least <= value <= most:
        raise UsageError(f"{flag} {value} is not from {least} to {most}", why=why, fix=f"leave {flag} out")
