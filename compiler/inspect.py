"""What an engine folder holds, read from its manifest and, where onnx is installed, from its graphs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..engines.manifest import Manifest, Part

_WRITTEN_LATER = ("verify.json", "tune.json")


def inspect_engine(folder: Path, *, hashes: bool = True) -> dict[str, Any]:
    """The manifest, sizes and operator counts, after the folder has been checked. Raises ``EnvironmentProblem``."""
    manifest = Manifest.read(folder)
    manifest.check(folder, hashes=hashes)
    content = asdict(manifest)
    return {
        "engine": str(folder),
        **content,
        "bytes": sum(entry.size for entry in manifest.files.values()),
        "operators": {
            name: _operators(folder, part)
            for name, part in (("target", manifest.target), ("drafter", manifest.drafter))
        },
        "reports": [name for name in _WRITTEN_LATER if (folder / name).is_file()],
    }


def _operators(folder: Path, part: Part) -> dict[str, int] | None:
    """How often each operator occurs, most frequent first; None where onnx is not installed."""
    if find_spec("onnx") is None:
        return None
    import onnx

    graph = onnx.load_model(folder / part.file, load_external_data=False).graph
    counts = Counter(f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type) for node in graph.node)
    return dict(counts.most_common())
