"""Judge how an input ended: only a complete result or a ``PeagleError`` is right, without partial files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest, is_engine
from peagle.plugins.errors import PeagleError
from tests.attacks.world import Outcome, World

CODES = {0, 2, 3, 4, 5}
_NEVER_SAID = ("internal error of peagle-compile", "Traceback", "Exception ignored")
_WORDS = 400


def judge(world: World, outcome: Outcome, arguments: Sequence[str]) -> str | None:
    """The complaint about a command, or None."""
    said = outcome.err + outcome.out
    if outcome.code not in CODES or any(words in outcome.err for words in _NEVER_SAID):
        return f"exit code {outcome.code}: {_last_words(outcome.err)}"
    if outcome.code and not outcome.err.strip():
        return f"exit code {outcome.code} without a word"
    if outcome.code and not any(words in said for words in ("error: ", '"error": ')):
        return f"exit code {outcome.code} without an error: {_last_words(said)}"
    return _of_the_disk(world, outcome.code, arguments)


def _of_the_disk(world: World, code: int, arguments: Sequence[str]) -> str | None:
    changed, new = world.changed(), world.new()
    of_a_log = _logs(arguments)
    new = [path for path in new if os.path.realpath(world.root / path) not in of_a_log]
    if code not in (0, 4):
        left = [path for path in new if path != "engine/verify.json"]
        changed = [path for path in changed if path != "engine/engine.json" or left == new]  # which lists it
        return f"exit code {code}, and yet changed {changed[:3]}, new {left[:3]}" if changed or left else None
    if half := [path for path in new if ".building" in path or path.endswith((".old", ".tmp"))]:
        return f"left {half[:3]}"
    replaced = {Path(path).parts[0] for path in changed}
    if lost := replaced - {"engine", "empty", "to-empty", "to-engine", "dangling"}:
        return f"changed {sorted(lost)}"
    for folder in (world.root / path for path in {*new, *replaced}):
        if folder.is_dir() and is_engine(folder):
            try:
                check_files(Manifest.read(folder).files, folder)
            except PeagleError as error:
                return f"made an engine that is refused: {error}"
    return None


def _logs(arguments: Sequence[str]) -> set[str]:
    """Return the files that a command was told to write besides its result."""
    given = [after for flag, after in pairwise(arguments) if flag == "--log"]
    given += [each.partition("=")[2] for each in arguments if each.startswith("--log=")]
    return {os.path.realpath(each) for each in given if "\0" not in each}


def _last_words(text: str) -> str:
    return " ".join(text.split())[:_WORDS]
