"""``--dry-run``: the plan of a build or an export, from the configuration alone. Writes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ...graphs.lowering import TENSORRT, Lowering
from ...graphs.targets import family_for
from ...plugins.errors import UsageError
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.known_pairs import PAIRS, Folder
from ..checkpoints.pair import ASSUMED_DEPTH, read_head
from ..checkpoints.registry import drafter_source, target_config, target_source
from ..checkpoints.target import Target
from ..console.text import emit
from ..hardware.architectures import sm_names
from ..precision.calibration.ranges import RangesFrom
from ..precision.legal import available, lowering_for, require_gpus, supports
from ..precision.recipes import Overrides, Recipe, wide_type
from ..precision.source import is_whole_fp8, of_target
from ..precision.stored import StoredFp8
from .facts import Plan
from .forecast import UNKNOWN_HEAD, make_plan, planned_recipe
from .text import render
from .weight_bytes import share_note

_SM = re.compile(r"(?:sm[-_]?)?\d{2,3}")  # as builders.targets reads it


@dataclass(frozen=True)
class Asked:
    """What a plan is asked for. ``lowering`` None is TensorRT's with a GPU, else ONNX Runtime's.

    ``builds`` is for an engine, which for TensorRT has its checkpoint's precision unless told.
    """

    model: str
    draft: str | None = None
    revision: str | None = None
    lowering: str | None = None
    precision: str | None = None
    max_seq_len: int = 2048
    num_speculative_tokens: int | None = None
    gpu: str | None = None
    overrides: Overrides = field(default=Overrides())
    ranges: RangesFrom = field(default=RangesFrom())
    builds: bool = False

    @property
    def chosen_lowering(self) -> str:
        """The lowering asked for, else what runs on what was asked for."""
        return self.lowering or ("tensorrt" if self.gpu is not None else "ort")


@dataclass(frozen=True)
class Decided:
    """What it comes to. ``wide`` None is not known yet; ``gpu`` is one whose memory is known."""

    lowering: Lowering
    precision: str
    wide: str | None
    gpu: str | None
    notes: tuple[str, ...]


def print_plan(asked: Asked, *, as_json: bool) -> None:
    """Print the plan as a table or as JSON. Raises ``UsageError`` or ``BuildError`` for what cannot be planned."""
    found = plan(asked)
    if as_json:
        emit(found.as_json())
    else:
        print(render(found))


def plan(asked: Asked) -> Plan:
    """The plan for a target and, where its checkpoint lies on this machine, its drafter."""
    decided = decide(asked)
    lowering, notes = decided.lowering, [*decided.notes]
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
    if decided.gpu and not lowering.is_tensorrt:
        notes.append(f"the verdict compares bytes: what runs on a GPU here is TensorRT, not {lowering}")
    return make_plan(
        asked.model,
        config,
        origin,
        precision=decided.precision,
        max_seq_len=asked.max_seq_len,
        num_speculative_tokens=max(depth, asked.num_speculative_tokens or 0),
        lowering=lowering.name,
        gpu=decided.gpu,
        overrides=asked.overrides,
        wide=decided.wide,
        head=head,
        head_note="" if head else unknown,
        notes=tuple(notes),
    )


def decide(asked: Asked) -> Decided:
    """Settle the types by the headers of a checkpoint that lies here, and refuse what a build of it refuses."""
    asked.ranges.check()
    lowering = lowering_for(asked.chosen_lowering)
    known = available(lowering)
    gpu, notes = _gpu(asked.gpu)
    target = _local_target(asked)
    wide = wide_type(target) if target and lowering.is_tensorrt else None
    precision = asked.precision or (_own(target, asked, wide) if target and wide and asked.builds else known[0])
    recipe = planned_recipe(precision, lowering, asked.overrides, wide)
    if asked.gpu and not gpu:
        require_gpus(recipe, sm_names([asked.gpu]))
    if target and precision in known:
        notes += _kept(target, recipe, lowering)
    if precision not in known:
        notes.append(f"nothing is written in {precision} for {lowering} ({', '.join(known)} are): this is arithmetic")
    return Decided(lowering, precision, wide, gpu, tuple(notes))


def _local_target(asked: Asked) -> Checkpoint | None:
    """The target where its weights lie on this machine."""
    source = target_source(asked.model, asked.revision)
    if isinstance(source, Folder) and any(source.path.glob("*.safetensors")):
        return Checkpoint.open(source.path)
    return None


def _own(target: Checkpoint, asked: Asked, wide: str) -> str:
    """What a build for TensorRT takes unless told; see ``settle.precision_for``."""
    able = all(supports(gpu, "fp8") for gpu in sm_names([asked.gpu] if asked.gpu else []))
    return "fp8" if able and is_whole_fp8(Target.of(target), TENSORRT) else wide


def _kept(target: Checkpoint, recipe: Recipe, lowering: Lowering) -> list[str]:
    """What an FP8 checkpoint lacks for the recipe. Raises ``BuildError`` for one that it cannot be made of."""
    source = of_target(Target.of(target), recipe, lowering) if recipe.narrow else None
    if not isinstance(source, StoredFp8):
        return []
    return share_note("the weights", source.selection.share_without(source.storage()[1]), recipe)


def _gpu(name: str | None) -> tuple[str | None, list[str]]:
    """The GPU to give a verdict for. ``sm_120`` is an architecture: many GPUs have it, each with its own memory."""
    if name is None:
        return None, []
    if "," in name:
        raise UsageError(f"--gpu {name} names several GPUs", why="a plan is for one", fix="name one, or plan each")
    if _SM.fullmatch(name.strip().lower()):
        return None, [f"{name} says nothing of memory: a GPU's name, for example b200, gets a verdict"]
    return name, []
