"""Files that a build copies beside the weights: none may be a link that points outside the checkpoint.

The copies become part of an engine that others receive. A link could add any file that the user can read.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path

from ...plugins.problems import Problems, shown

BESIDE_WEIGHTS = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.jinja",
    "generation_config.json", "*processor_config.json", "LICENSE*", "NOTICE*",
)  # fmt: skip
NAMED_TEMPLATES = "additional_chat_templates"  # repeated here so that graphs do not depend on the chat code
_COPIED = ("config.json", *BESIDE_WEIGHTS)


def check_links(folder: Path, problems: Problems) -> None:
    """Report every such file that links elsewhere as a problem; ``folder`` is a real path.

    The Hub's cache is the exception: its ``snapshots/REVISION`` consists of links to the ``blobs`` of the same
    repository.
    """
    try:
        copied = _copied(folder)
    except OSError as error:
        problems.add(f"cannot list {folder}", why=str(error.strerror), fix="check the folder's permissions")
        return
    for path in copied:
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(home) for home in _trusted_folders(folder)):
            problems.add(
                f"{shown(path.relative_to(folder).as_posix())} in {folder} is a link to {shown(str(real))}",
                why="a build copies this file into the engine, so a link must not point outside the checkpoint",
                fix="if you trust the file, replace the link with a copy of it",
            )


def _copied(folder: Path) -> list[Path]:
    named_templates = folder / NAMED_TEMPLATES
    names = [folder / name for name in os.listdir(folder) if any(fnmatch(name, pattern) for pattern in _COPIED)]
    return sorted([*names, *named_templates.glob("*.jinja")])


def _trusted_folders(folder: Path) -> list[Path]:
    is_snapshot = folder.parent.name == "snapshots"
    return [folder, *([folder.parent.parent / "blobs"] if is_snapshot else [])]
