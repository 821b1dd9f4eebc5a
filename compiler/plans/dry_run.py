"""``--dry-run``: the plan of a build or an export, from the configuration alone. Writes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ...graphs.families import family_for
from ...plugins.errors import UsageError
from ..checkpoint import Checkpoint
from ..console import emit
from ..inputs import ASSUMED_DEPTH, read_head
from ..legal import available
from ..recipes import Overrides
from ..registry import PAIRS, Folder, drafter_source, target_config
from .facts import Plan
from .make import UNKNOWN_HEAD, make_plan
from .text import render

_SM = re.compile(r"(?:sm[-_]?)?\d{2,3}")  # as builders.targets reads it


@dataclass(frozen=True)
class Asked:
    """What a plan is asked for. ``lowering`` None is TensorRT's with a GPU, else ONNX Runtime's."""

    model: str
    draft: str | None = None
    revision: str | None = None
    lowering: str | None = None
    precision: str | None = None
    max_seq_len: int = 2048
    num_speculative_tokens: int | None = None
    gpu: str | None = None
    overrides: Overrides = field(default=Overrides())

    @property
    def chosen_lowering(self) -> str:
        """The lowering asked for, else what runs on what was asked for."""
        return self.lowering or ("tensorrt" if self.gpu is not None else "ort")


def print_plan(asked: Asked, *, as_json: bool) -> None:
    """Print the plan as a table or as JSON. Raises ``UsageError`` or ``BuildError`` for what cannot be planned."""
    found = plan(asked)
    if as_json:
        emit(found.as_json())
    else:
        print(render(found))


def plan(asked: Asked) -> Plan:
    """The plan for a target and, where its checkpoint lies on this machine, its drafter."""
    lowering = asked.chosen_lowering
    precision = asked.precision or available(lowering)[0]
    gpu, notes = _gpu(asked.gpu)
    config, origin = target_config(asked.model, asked.revision)
    pair, source = PAIRS.get(asked.model), drafter_source(asked.model, asked.draft)
    head, unknown = None, UNKNOWN_HEAD
    if isinstance(source, Folder):
        head = read_head(Checkpoint.open(source.path), family_for(config).describe(config))
    elif source is None:
        unknown = "none named"
    elif asked.draft is None and pair and pair.drafter_size:
        unknown = f"{pair.drafter_size}; the rest is {UNKNOWN_HEAD}"
    depth = (head.trained_depth if head else None) or (pair.trained_depth if pair else None) or ASSUMED_DEPTH
    if precision not in available(lowering):
        notes.append(f"{precision} for {lowering} is planned by arithmetic: this version does not write it yet")
    if gpu and lowering != "tensorrt":
        notes.append(f"the verdict compares bytes: what runs on a GPU here is TensorRT, not {lowering}")
    return make_plan(
        asked.model,
        config,
        origin,
        precision=precision,
        max_seq_len=asked.max_seq_len,
        num_speculative_tokens=max(depth, asked.num_speculative_tokens or 0),
        lowering=lowering,
        gpu=gpu,
        overrides=asked.overrides,
        head=head,
        head_note="" if head else unknown,
        notes=tuple(notes),
    )


def _gpu(name: str | None) -> tuple[str | None, list[str]]:
    """The GPU to give a verdict for. ``sm_120`` is an architecture: many GPUs have it, each with its own memory."""
    if name is None:
        return None, []
    if "," in name:
        raise UsageError(f"--gpu {name} names several GPUs", why="a plan is for one", fix="name one, or plan each")
    if _SM.fullmatch(name.strip().lower()):
        return None, [f"{name} says nothing of memory: a GPU's name, for example b200, gets a verdict"]
    return name, []
