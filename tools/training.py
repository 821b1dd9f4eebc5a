"""Shared code of the training scripts: optimizers, learning-rate schedule, batches and checkpoints.

Batches depend only on the step number, and checkpoints survive an interruption.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def wsd(step: int, steps: int, warm_up: int, decay_share: float) -> float:
    """Return the factor on the peak learning rate at `step` (0-based) of `steps`: warm-up, constant, linear decay."""
    decay_steps = max(1, round(steps * decay_share))
    return min(1.0, (step + 1) / warm_up, (steps - step) / decay_steps)


def first_decay_step(steps: int, decay_share: float) -> int:
    """Return the first step whose learning rate depends on `steps`; until then, runs of any length are identical."""
    return steps - max(1, round(steps * decay_share))


class MuonAndAdam:
    """Muon for the matrices inside the blocks, AdamW for everything else (embeddings, heads, norms).

    Muon orthogonalises the update of a matrix, which helps a small model trained for few steps clearly more than AdamW;
    it is not meant for embeddings, where each row is a separate vector.
    """

    def __init__(
        self,
        model: nn.Module,
        matrices: set[str],
        muon_lr: float,
        adam_lr: float,
        weight_decay: float,
        factors: dict[str, float] | None = None,
    ):
        """Take `matrices`, the 2-D parameters for Muon, and `factors`, their own learning-rate factors."""
        factors = factors or {}
        muon: list[dict[str, Any]] = []
        adam: list[dict[str, Any]] = []
        for name, parameter in model.named_parameters():
            group = {"params": [parameter], "factor": factors.get(name, 1.0)}
            (muon if name in matrices else adam).append(group)
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(muon, lr=muon_lr, weight_decay=weight_decay), muon_lr),
            (torch.optim.AdamW(adam, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True), adam_lr),
        ]

    def step(self, factor: float) -> None:
        """Apply one update at `factor` times the peak learning rates and clear the gradients."""
        for optimizer, peak in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * factor * group["factor"]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer, _ in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for (optimizer, _), state in zip(self.parts, states, strict=True):
            optimizer.load_state_dict(state)


class Windows:
    """Windows of a token stream in a new order every epoch, as a function of the step alone.

    A run resumed at step n therefore sees the same batches as an uninterrupted one.
    """

    def __init__(self, stream: Tensor, length: int, batch: int, seed: int):
        """Take `stream` int64 [T]."""
        self.stream, self.length, self.batch, self.seed = stream, length, batch, seed
        self.per_epoch = (len(stream) // length - 2) // batch
        self._epoch = -1
        self._starts = torch.empty(0, dtype=torch.int64)

    def at(self, step: int) -> Tensor:
        """Return the batch of `step`: int64 [batch, length + 1], one more than `length` for the labels."""
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1000 + epoch)
            offset = torch.randint(self.length, (1,), generator=generator)
            order = torch.randperm(self.per_epoch * self.batch, generator=generator)
            self._epoch, self._starts = epoch, order * self.length + offset
        starts = self._starts[index * self.batch : (index + 1) * self.batch]
        return torch.stack([self.stream[start : start + self.length + 1] for start in starts.tolist()])


@dataclass
class Checkpoint:
    """The state that a resumed run needs; `run` has the settings that the state depends on, by flag or in words."""

    step: int
    steps: int
    seconds: float
    model: dict[str, Tensor]
    optimizers: list[dict[str, Any]]
    run: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write a temporary file and rename it: a kill leaves the old checkpoint or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        torch.save(self.__dict__, partial)
        os.replace(partial, path)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read what `Checkpoint.save` wrote."""
    return Checkpoint(**torch.load(path, weights_only=True))


def digest(path: Path | None) -> str:
    """Return the start of a file's SHA-256, for the settings of a run; none without a file."""
    return "none" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def resume(path: Path, steps: int, decay_share: float, run: dict[str, str]) -> Checkpoint | None:
    """Return the checkpoint of `run` with `steps` steps, or None if there is none.

    The number of steps may have changed only while it had no effect on the run so far. Raises ``SystemExit`` for the
    checkpoint of a run with other settings.
    """
    if not path.exists():
        return None
    checkpoint = read_checkpoint(path)
    unrecorded = "not recorded"
    pairs = {name: (checkpoint.run.get(name, unrecorded), run.get(name, unrecorded)) for name in run | checkpoint.run}
    if changed := [f"{name} was {old}, and is now {new}" for name, (old, new) in pairs.items() if old != new]:
        raise SystemExit(
            f"{path} is the checkpoint of another run: {'; '.join(changed)}. Repeat the command of that run to "
            "continue it, or move the file to start a new one."
        )
    same_so_far = checkpoint.step <= first_decay_step(min(steps, checkpoint.steps), decay_share)
    if steps != checkpoint.steps and not same_so_far:
        raise SystemExit(
            f"{path} is at step {checkpoint.step} of {checkpoint.steps}, too late to change it to {steps}: "
            "the learning-rate decay has begun. Delete the file to start again."
        )
    print(f"continuing at step {checkpoint.step}", flush=True)
    return checkpoint


def default_state(name: str) -> Path:
    """Return the default path of a run's checkpoints."""
    return Path(tempfile.gettempdir()) / "peagle-demo" / name
