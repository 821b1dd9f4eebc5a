"""Edited engines: manifests or files that contradict each other, with digest and hashes made consistent again.

Such an engine is refused, or it runs.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

from tests.attacks import nasty_values as nasty
from tests.attacks.judging import judge
from tests.attacks.world import World, command

Piece = tuple[str, str, bytes]  # file, description of the change, new content

MANIFEST = "engine.json"
_TEXTS = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "target/config.json")
_KNOWN = ("plan", "evidence", "gpus", "caches", "dtype", "taps", "digest", "format_version", "method", "x")


def draw(rng: random.Random, world: World) -> list[Piece]:
    """One change, or a few, of the manifest or of a file that the engine is read with."""
    name = MANIFEST if rng.random() < 0.75 else rng.choice([n for n in _TEXTS if (world.engine / n).is_file()])
    content = json.loads((world.engine / name).read_text())
    if rng.random() < 0.05:
        return [(name, "another document", rng.choice(nasty.NOT_A_DOCUMENT))]
    pieces = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        words, content = nasty.edited(rng, content, _KNOWN)
        pieces.append((name, words, json.dumps(content).encode()))
    return pieces[-1:]


def run(world: World, pieces: list[Piece]) -> str | None:
    """Describe what is wrong when an edited engine is inspected and run, or return None."""
    edited = world.here / "edited"
    shutil.copytree(world.engine, edited)
    for name, _, text in pieces:
        (edited / name).write_bytes(text)
    _make_right(edited)
    world.remember()
    for arguments in (["inspect", str(edited)], ["run", str(edited), "def f(", "--max-tokens", "12"]):
        if complaint := judge(world, command(arguments), arguments):
            return f"{arguments[0]}: {complaint}"
    return None


def _make_right(folder: Path) -> None:
    """State sizes, hashes and the digest as they are now, where the manifest still has a place for them."""
    try:
        content: Any = json.loads((folder / MANIFEST).read_bytes())
    except (ValueError, RecursionError):
        return
    if not isinstance(content, dict):
        return
    files = content.get("files")
    for name in _TEXTS:
        if isinstance(files, dict) and isinstance(files.get(name), dict) and (folder / name).is_file():
            data = (folder / name).read_bytes()
            files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    content.pop("digest", None)
    content["digest"] = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(content))
