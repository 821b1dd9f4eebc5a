"""What a build is asked for, and the refusals that need nothing but the request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..plugins.errors import EnvironmentProblem, UsageError
from .publish import require_publishable

if TYPE_CHECKING:
    from ..graphs.lowering import Lowering

BACKENDS = ("onnxruntime",)
PRECISIONS = ("fp32",)
LOWERINGS = ("ort", "std")


@dataclass(frozen=True)
class BuildOptions:
    """What to build. ``num_speculative_tokens=None`` lets the build measure which K is fastest on this machine."""

    model: str
    out: Path
    draft: str | None = None
    revision: str | None = None
    draft_revision: str | None = None
    backend: str = "onnxruntime"
    precision: str = "fp32"
    num_speculative_tokens: int | None = None
    max_seq_len: int = 2048
    lowering: Lowering = "ort"
    force: bool = False

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        if self.backend not in BACKENDS:
            raise EnvironmentProblem(
                f"the backend {self.backend!r} is not available",
                why=f"available now: {', '.join(BACKENDS)}",
                fix="leave --backend out; `peagle-compile doctor` says what this machine can build and run",
            )
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"the precision {self.precision!r} is not available",
                why=f"ONNX Runtime on a CPU computes in fp32; available now: {', '.join(PRECISIONS)}",
                fix="leave --precision out",
            )
        if self.lowering not in LOWERINGS:
            raise UsageError(
                f"the lowering {self.lowering!r} does not exist", why=f"it is one of {', '.join(LOWERINGS)}"
            )
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 1:
            raise UsageError(
                f"--num-speculative-tokens {self.num_speculative_tokens} is below 1",
                why="it is the number of tokens drafted per round",
                fix="leave it out and the build measures which is fastest here; plain decoding is an option of `run`",
            )
        if self.max_seq_len < 1:
            raise UsageError(f"--max-seq-len {self.max_seq_len} is below 1", fix="2048 is the default")
        require_publishable(self.out)
