"""``peagle-compile models``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..console.printing import columns, emit
from .shared_flags import Json

if TYPE_CHECKING:
    from ..checkpoints.known_pairs import Pair, Source


def models(as_json: Json = False) -> None:
    """List the models that have a short name, and what was verified for each.

    Example: peagle-compile models --json
    """
    from ..checkpoints.known_pairs import PAIRS

    pairs = PAIRS.values()
    if as_json:
        emit([_fields(pair) for pair in pairs])
        return
    rows = [("name", "drafts", "taps", "target", "drafter")]
    rows += [
        (
            pair.name,
            str(pair.trained_depth or "unknown"),
            ", ".join(map(str, pair.taps)),
            _source(pair.target),
            _source(pair.drafter),
        )
        for pair in pairs
    ]
    print(columns(rows))
    for pair in pairs:
        print("\n" + columns(_remarks(pair)))
    print("\nThe id of a target brings the same drafter as its short name.")
    print("Any other pair: --model and --draft also take checkpoint folders (config.json and safetensors)")
    print("and ids of the Hugging Face Hub (OWNER/NAME), which --revision and --draft-revision pin.")


def _source(source: Source | None) -> str:
    from ..checkpoints.known_pairs import Folder

    if source is None:
        return "none public"
    return "bundled" if isinstance(source, Folder) else source.repo


def _remarks(pair: Pair) -> list[tuple[str, str]]:
    from ..checkpoints.known_pairs import HubRepo

    rows = [(pair.name, pair.description)]
    rows += [
        (f"  {part} revision", source.revision or "not pinned")
        for part, source in (("target", pair.target), ("drafter", pair.drafter))
        if isinstance(source, HubRepo)
    ]
    rows.append(("  taps", pair.taps_source))
    rows += [("  evidence", f"{level}: {how}") for level, how in pair.evidence] or [("  evidence", "none")]
    rows += [("  note", note) for note in pair.notes]
    if pair.unknown:
        rows.append(("  not known", "; ".join(pair.unknown)))
    return rows


def _fields(pair: Pair) -> dict[str, Any]:
    """Every field; a source is ``{"repo", "revision"}``, ``{"path"}`` or null."""
    fields = asdict(pair)
    for source in (fields["target"], fields["drafter"] or {}):
        if "path" in source:
            source["path"] = str(source["path"])
    return fields
