"""The plugin library as files: ``libpeagle_plugins.so`` and its index ``plugin_library.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...errors import EnvironmentProblem
from ...kernels.pack import Pack
from ...kernels.sources import TARGETS
from . import INDEX, LIBRARY
from .compile import PluginLibrary, compile_library

FORMAT = 1


def write_plugin_library(folder: Path, sms: Iterable[int] = TARGETS, packs: Sequence[Pack] = ()) -> PluginLibrary:
    """Compile the library for these compute capabilities and write it; raises the errors of ``compile_library``."""
    library = compile_library(sms, packs)
    write_library(folder, library)
    return library


def write_library(folder: Path, library: PluginLibrary) -> None:
    """Write the library, then its index. The same library gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIBRARY).write_bytes(library.code)
    index = {
        "format": FORMAT,
        "machine": library.machine,
        "gpus": [f"sm_{sm}" for sm in library.sms],
        "bytes": len(library.code),
        "sha256": hashlib.sha256(library.code).hexdigest(),
        "source_sha256": library.digest,
        "compiler": library.compiler,
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def read_index(folder: Path) -> dict[str, Any]:
    """Return the index: machine, gpus, bytes, hashes, compiler. Raises ``EnvironmentProblem`` if missing or invalid."""
    path = folder / INDEX
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"the record has format {content['format']!r}, but this version reads format {FORMAT}")
        types = {"machine": str, "gpus": list, "bytes": int, "sha256": str, "source_sha256": str, "compiler": str}
        if wrong := [name for name, kind in types.items() if not isinstance(content[name], kind)]:
            raise ValueError(f"wrong type: {', '.join(wrong)}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvironmentProblem(
            f"{path} does not describe a plugin library",
            why=f"{type(error).__name__}: {error}",
            fix="copy the whole engine again, or rebuild it",
        ) from error
    return {name: content[name] for name in types}
