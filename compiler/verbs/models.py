"""``peagle-compile models``."""

from __future__ import annotations

from dataclasses import asdict

from ..console import columns, emit
from .common import Json


def models(as_json: Json = False) -> None:
    """List the models that have a short name, and what was verified for each.

    Example: peagle-compile models --json
    """
    from ..registry import PAIRS

    if as_json:
        emit([asdict(pair) | {"target": str(pair.target), "drafter": str(pair.drafter)} for pair in PAIRS.values()])
        return
    rows = [("name", "drafts", "evidence", "what it is")]
    rows += [
        (pair.name, str(pair.trained_depth), ", ".join(level for level, _ in pair.evidence), pair.description)
        for pair in PAIRS.values()
    ]
    print(columns(rows))
    print("\nAny other pair: --model FOLDER --draft FOLDER, checkpoints with config.json and safetensors.")
