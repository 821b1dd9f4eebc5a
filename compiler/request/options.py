"""What a build is asked for, and the refusals that need nothing but the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...plugins.errors import UsageError
from ..precision import legal
from ..precision.calibration.ranges import RangesFrom
from ..precision.recipes import Overrides
from ..store.publish import require_apart, require_publishable
from .backend import require_known

ONNXRUNTIME = "onnxruntime"
LOWERINGS = ("ort", "std")
MAX_BATCH_SIZE = 256  # the kernels are tested up to here


@dataclass(frozen=True)
class BuildOptions:
    """What to build. None leaves a choice to the build, which writes what it chose into ``resolved_config.yaml``.

    ``backend`` and ``precision`` follow from this machine and from the checkpoint. ``num_speculative_tokens`` is
    measured where the engine can run. ``gpus`` names those that TensorRT plans are for (``b200``, ``sm_120``); the five
    fields from there on are TensorRT's alone. ``overrides`` change what the precision stands for, and ``ranges`` says
    where those of inputs come from that are rounded with a calibrated scale.
    """

    model: str
    out: Path
    draft: str | None = None
    revision: str | None = None
    draft_revision: str | None = None
    backend: str | None = None
    precision: str | None = None
    num_speculative_tokens: int | None = None
    max_seq_len: int = 2048
    lowering: str | None = None
    force: bool = False
    gpus: tuple[str, ...] = ()
    max_batch_size: int | None = None
    optimization_level: int | None = None
    workspace_gb: float | None = None
    weight_streaming: bool = False
    overrides: Overrides = field(default=Overrides())
    ranges: RangesFrom = field(default=RangesFrom())

    def tensorrt_only(self) -> dict[str, object]:
        """The flags that were given and that only TensorRT has."""
        flags: dict[str, object] = {
            "--gpu": self.gpus or None,
            "--max-batch-size": self.max_batch_size,
            "--optimization-level": self.optimization_level,
            "--workspace-gb": self.workspace_gb,
            "--weight-streaming": self.weight_streaming or None,
        }
        return {flag: value for flag, value in flags.items() if value is not None}

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        require_known(self.backend)
        legal.require_known(self.precision)
        self.ranges.check()
        _one_of("lowering", self.lowering, LOWERINGS, "leave --lowering out; TensorRT has its own")
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 1:
            raise UsageError(
                f"--num-speculative-tokens {self.num_speculative_tokens} is below 1",
                why="it is the number of tokens drafted per round",
                fix="leave it out and the build measures which is fastest here; plain decoding is an option of `run`",
            )
        if self.max_seq_len < 1:
            raise UsageError(f"--max-seq-len {self.max_seq_len} is below 1", fix="2048 is the default")
        _between("--max-batch-size", self.max_batch_size, 1, MAX_BATCH_SIZE, "the rows that decode together")
        _between("--optimization-level", self.optimization_level, 0, 5, "TensorRT's builder has these levels")
        if self.workspace_gb is not None and not 0 < self.workspace_gb < float("inf"):
            raise UsageError(f"--workspace-gb {self.workspace_gb} is not a size", fix="leave it out for no limit")
        require_apart(self.out, self.model, self.draft)
        require_publishable(self.out)


def _one_of(what: str, value: str | None, known: tuple[str, ...], fix: str) -> None:
    if value is not None and value not in known:
        raise UsageError(f"the {what} {value!r} does not exist", why=f"it is one of {', '.join(known)}", fix=fix)


def _between(flag: str, value: int | None, least: int, most: int, why: str) -> None:
    if value is not None and not least <= value <= most:
        raise UsageError(f"{flag} {value} is not from {least} to {most}", why=why, fix=f"leave {flag} out")
