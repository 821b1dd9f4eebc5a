"""``--dry-run``: the plan of a build or an export, from the configuration alone. Writes nothing."""

from __future__ import annotations

from ...graphs.families import family_for
from ...plugins.errors import UsageError
from ..checkpoint import Checkpoint
from ..console import emit
from ..export import PRECISIONS
from ..inputs import ASSUMED_DEPTH, read_head
from ..registry import PAIRS, Folder, drafter_source, target_config
from .facts import Plan
from .make import UNKNOWN_HEAD, make_plan
from .text import render


def print_plan(
    model: str,
    *,
    draft: str | None,
    revision: str | None,
    lowering: str,
    precision: str | None,
    max_seq_len: int,
    num_speculative_tokens: int | None,
    gpu: str | None,
    as_json: bool,
) -> None:
    """Print the plan as a table or as JSON. Raises ``UsageError`` or ``BuildError`` for what cannot be planned."""
    found = plan(model, draft, revision, lowering, precision, max_seq_len, num_speculative_tokens, gpu)
    if as_json:
        emit(found.as_json())
    else:
        print(render(found))


def plan(
    model: str,
    draft: str | None = None,
    revision: str | None = None,
    lowering: str = "ort",
    precision: str | None = None,
    max_seq_len: int = 2048,
    num_speculative_tokens: int | None = None,
    gpu: str | None = None,
) -> Plan:
    """The plan for a target and, where its checkpoint lies on this machine, its drafter."""
    if lowering not in PRECISIONS:
        raise UsageError(f"--for {lowering} does not exist", why=f"it is one of {', '.join(PRECISIONS)}")
    # What runs on a GPU here is TensorRT.
    lowering = "tensorrt" if gpu is not None and lowering == "ort" else lowering
    chosen = precision or PRECISIONS[lowering][0]
    config, origin = target_config(model, revision)
    pair, source = PAIRS.get(model), drafter_source(model, draft)
    head, note = None, UNKNOWN_HEAD
    if isinstance(source, Folder):
        head = read_head(Checkpoint.open(source.path), family_for(config).describe(config))
    elif source is None:
        note = "none named"
    elif draft is None and pair and pair.drafter_size:
        note = f"{pair.drafter_size}; the rest is {UNKNOWN_HEAD}"
    depth = (head.trained_depth if head else None) or (pair.trained_depth if pair else None) or ASSUMED_DEPTH
    notes = []
    if chosen not in PRECISIONS[lowering]:
        notes.append(f"{chosen} for {lowering} is planned by arithmetic: this version does not write it yet")
    return make_plan(
        model,
        config,
        origin,
        precision=chosen,
        max_seq_len=max_seq_len,
        num_speculative_tokens=max(depth, num_speculative_tokens or 0),
        lowering=lowering,
        gpu=gpu,
        head=head,
        head_note="" if head else note,
        notes=tuple(notes),
    )
