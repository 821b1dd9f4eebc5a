"""Engines whose plans are ONNX graphs, built on a machine that may have no GPU.

``python -m tests.gpu.plan_folders OUT`` makes all of them, where this project is installed. Tests take them from the
folder that ``PEAGLE_TEST_PLANS`` names, or else make those that they need.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from peagle.engines.folder.manifest import Manifest
from peagle.engines.folder.records import FileEntry, Profile
from tests.engines.backends.stand_in import write_plan

if TYPE_CHECKING:
    from peagle.graphs.trace import Dtype
    from tests.models import Pair

FOLDER = "PEAGLE_TEST_PLANS"
_FP8, _FP8_LENGTH = "float8e4m3fn", 128  # of a cache; a multiple of 64, so that every row begins at an aligned address


@dataclass(frozen=True)
class Kind:
    """A pair and the type of its graphs; with a ``cache_scale``, its target's caches hold codes times that."""

    pair: str
    dtype: Dtype
    cache_scale: float = 0.0


KINDS: Mapping[str, Kind] = {
    "tiny": Kind("qwen3", "float32"),
    "tiny-float16": Kind("qwen3", "float16"),
    "tiny-fp8-caches": Kind("qwen3", "float32", cache_scale=0.02),
    "tiny-float16-fp8-caches": Kind("qwen3", "float16", cache_scale=0.02),
    "eagle3": Kind("eagle3", "float32"),
    "eagle3-float16": Kind("eagle3", "float16"),
    "demo": Kind("demo", "float16"),
    "qwen3-moe": Kind("qwen3-moe", "float32"),
    "gpt-oss": Kind("gpt-oss", "float32"),
}


def open_plans(name: str, folder: Path) -> tuple[Manifest, Path]:
    """Write the plans of a kind of engine into ``folder``; return their manifest, and the folder of the tokenizer."""
    carried = os.environ.get(FOLDER)
    made = Path(carried).resolve() / name if carried else folder / "made"
    if not carried:
        make(name, made, *_built(KINDS[name].pair, folder.parent / "plan-pairs"))
    manifest = Manifest.read(made)
    for half, part in manifest.parts.items():
        profiles: tuple[Profile, ...] = part.plan.profiles if part.plan else ()
        write_plan(folder / part.file, made / half / "model.onnx", profiles)
    return manifest, made


def make(name: str, folder: Path, pair: Pair, engine: Path) -> None:
    """Make the folder of a kind of engine from its pair, and from the engine of ONNX Runtime that was built from it."""
    from tests.engines.backends.plan_engine import lowered, plan_manifest

    kind = KINDS[name]
    manifest = Manifest.read(engine)
    length = _FP8_LENGTH if kind.cache_scale else manifest.shapes.cache_length
    manifest = replace(manifest, shapes=replace(manifest.shapes, cache_length=length))
    graphs = lowered(pair.target, pair.head, kind.dtype, length, kind.cache_scale)
    for half, graph in graphs.items():
        (folder / half).mkdir(parents=True)
        for file in (graph, graph.with_name(f"{graph.name}.data")):
            shutil.copy(file, folder / half / file.name)
    manifest = plan_manifest(manifest, graphs, folder)
    if kind.cache_scale:
        caches = tuple(replace(cache, dtype=_FP8) for cache in manifest.target.caches)
        manifest = replace(manifest, target=replace(manifest.target, caches=caches))
    files = {part.file: FileEntry.of(folder / part.file) for part in manifest.parts.values()}
    replace(manifest, files=files).write(folder)
    for path in engine.glob("tokenizer*.json"):
        shutil.copy(path, folder / path.name)


@functools.cache
def _built(pair: str, pairs: Path) -> tuple[Pair, Path]:
    """A pair of checkpoints, and the engine of ONNX Runtime that is built from it; both below ``pairs``."""
    from peagle.compiler.pipeline.build import build
    from peagle.compiler.request.verb_options import BUILD
    from tests.models import VOCAB, Pair, eagle3_head, make_pair

    base = pairs / pair
    sizes = {"num_speculative_tokens": 4, "max_seq_len": 96}
    if pair == "demo":
        demo, sizes = Path(__file__).resolve().parents[2] / "compiler" / "bundled" / "demo", {}
        made = Pair(demo / "target", demo / "drafter")
    elif pair == "eagle3":
        target = _built("qwen3", pairs)[0]
        made = Pair(target.target, eagle3_head(base / "head", target, draft_vocab=VOCAB - 40))
    else:
        made = make_pair(base / "pair", pair)
    request = BUILD.request(model=str(made.target), draft=str(made.head), out=base / "engine", **sizes)
    return made, build(request).path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as aside:
        for each, kind in KINDS.items():
            make(each, Path(sys.argv[1]) / each, *_built(kind.pair, Path(aside)))
