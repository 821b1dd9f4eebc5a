"""Origin of a benchmark's figures: machine, versions, engines and the command, so that a reader can repeat them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ...engines.folder.manifest import Manifest
from ..hardware.machine import inspect_machine, processor_in_words, versions_in_words
from ..precision.recipes import in_words

Rows = list[tuple[str, str]]


def machine_rows() -> Rows:
    """Return rows on the processor, the GPUs, the load and the versions of this machine."""
    gpus = [gpu.in_words for gpu in inspect_machine().gpus]
    return [
        ("time", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("machine", processor_in_words()),
        *([("GPU", "; ".join(gpus))] if gpus else []),
        ("load", f"{os.getloadavg()[0]:.2f} at the start"),
        ("versions", versions_in_words()),
    ]


def engine_rows(folders: Sequence[Path], manifests: Sequence[Manifest], threads: int | None) -> Rows:
    """Return rows on the engines: the checkpoints and the precision that they were built from, and their threads."""
    rows = []
    for at, (folder, manifest) in enumerate(zip(folders, manifests, strict=True), 1):
        parts = [f"{part.origin.id} ({part.origin.revision[:16]})" for part in manifest.parts.values()]
        built = f"{folder.resolve().name}: {' with '.join(parts)}"
        backend = f"Backend {manifest.backend.name}, lowering {manifest.backend.lowering}"
        name = "engine" if len(folders) == 1 else f"engine {at}"
        builder = f"built by peagle-compile {manifest.product_version}"
        run = ", ".join([backend, builder, *_threads(manifest, threads)])
        rows.append((name, f"{built}. Precision {in_words(manifest.precision)}. {run}"))
    return rows


def _threads(manifest: Manifest, threads: int | None) -> list[str]:
    """Return the CPU threads of an engine in words; nothing for one that runs on a GPU."""
    if manifest.backend.gpus:
        return []
    from ...engines.backends.onnxruntime.loaded_graphs import default_threads

    count = default_threads(manifest) if threads is None else threads
    return [in_threads(count)]


def in_threads(count: int) -> str:
    """Return a number of threads in words; 0 is one per physical core."""
    return f"{count} thread{'s' * (count > 1)}" if count else "a thread per physical core"
