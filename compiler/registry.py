"""What ``--model`` and ``--draft`` may name: the pairs this product knows by a short name, or any local folder."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..plugins.errors import UsageError

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Pair:
    """A target and its P-EAGLE head that belong together, with what was verified for them."""

    name: str
    description: str
    target: Path
    drafter: Path
    trained_depth: int
    evidence: tuple[tuple[str, str], ...]


PAIRS = {
    pair.name: pair
    for pair in (
        Pair(
            name="demo",
            description="small Qwen3-architecture model of Python code with its P-EAGLE head, bundled",
            target=_HERE / "demo" / "target",
            drafter=_HERE / "demo" / "drafter",
            trained_depth=8,
            evidence=(("parity", "target logits against transformers, drafter logits against PyTorch, on CPU"),),
        ),
    )
}


@dataclass(frozen=True)
class Resolved:
    """Two checkpoint folders, the names they were asked for by, and what the registry knows about them as a pair."""

    model: str
    draft: str
    target: Path
    drafter: Path
    pair: Pair | None


def resolve(model: str, draft: str | None = None) -> Resolved:
    """Folders for ``--model`` and ``--draft``. A short name brings its own drafter; a folder needs ``--draft``."""
    pair = PAIRS.get(model)
    target = pair.target if pair else _folder(model, "--model")
    if draft is None:
        if pair is None:
            raise UsageError(
                f"--model {model} needs a drafter",
                why="only short names come with one",
                fix="add `--draft FOLDER`, the P-EAGLE head trained for this model",
            )
        return Resolved(model, model, target, pair.drafter, pair)
    named = PAIRS.get(draft)
    drafter = named.drafter if named else _folder(draft, "--draft")
    return Resolved(model, draft, target, drafter, pair if pair is named else None)


def _folder(name: str, flag: str) -> Path:
    path = os.path.expanduser(name)
    if os.path.isdir(path):  # False for names that no folder can have, where pathlib raises
        return Path(path).resolve()
    known = ", ".join(PAIRS)
    near = difflib.get_close_matches(name, PAIRS, 1, cutoff=0.5)
    if near:
        why = f"did you mean {near[0]}? the known names are: {known}"
    elif re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        why = (
            f"no such folder here, and ids of the Hugging Face Hub are not supported yet; the known names are: {known}"
        )
    else:
        why = f"it is no folder and no known name; the known names are: {known}"
    raise UsageError(
        f"{flag} {name!r} is not known",
        why=why,
        fix="pass one of these names, or the path of a checkpoint folder (config.json and safetensors)",
    )
