"""Compare the graphs and weights that two checkouts of this project export, byte for byte.

python tools/compare_graphs.py ../before .            # the demo and a tiny pair of every family
python tools/compare_graphs.py ../before . --quick    # the demo and one family

Use it for a change that must not affect the output. Each checkout exports every pair for every lowering, in a few
precisions, with its own code in its own process; differing files are listed. Node metadata names the rewrite that
created a node: graphs that differ only there are counted separately. The exit code is 1 if anything else differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

FAMILIES = ("qwen3", "llama", "qwen3-moe", "gpt-oss", "gemma-4", "gemma-4-moe")
RECIPES = (
    ("ort",), ("std",), ("tensorrt",), ("tensorrt-sm100",),
    ("ort", "--precision", "int8"), ("ort", "--precision", "int4"), ("ort", "--precision", "fp8"),
    ("tensorrt", "--precision", "fp8", "--kv-cache-dtype", "fp8"), ("tensorrt", "--precision", "int8"),
)  # fmt: skip
FILES = ("semantic.onnx", "model.onnx", "model.onnx.data")
SOURCES = Path("src")  # makes the top-level folders of a checkout the package `peagle`

_MAKE_PAIRS = """
import sys
from pathlib import Path
from tests.models import make_pair
for family in sys.argv[2:]:
    make_pair(Path(sys.argv[1]) / family, family)
"""
_EXPORT = """
import json, sys
from peagle.compiler.cli import main
for arguments in json.loads(sys.stdin.read()):
    sys.argv = ["peagle-compile", *arguments]
    try:
        main()
    except SystemExit as end:
        print(end.code or 0)
"""


@dataclass(frozen=True)
class Export:
    """One export: its title in the table, and the arguments of ``peagle-compile export`` except ``--out``."""

    title: str
    arguments: tuple[str, ...]


def exports_of(pairs: Mapping[str, Sequence[str]]) -> list[Export]:
    """Return every pair, given as the arguments that name it, in every lowering and recipe."""
    return [
        Export(f"{name} {' '.join(recipe)}", ("export", *named, "--max-seq-len", "64", "--for", *recipe))
        for name, named in pairs.items()
        for recipe in RECIPES
    ]


def in_checkout(checkout: Path, code: str, *arguments: str, input_text: str = "", cache: Path | None = None) -> str:
    """Run Python ``code`` with the package of ``checkout``; return its standard output."""
    root = checkout.resolve()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root / SOURCES), str(root)))}
    environment |= {"PEAGLE_CACHE": str(cache)} if cache else {}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=root, env=environment, input=input_text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{root} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def digest(path: Path) -> str:
    """Return the SHA-256 of a file; for a graph, followed by that of the graph without node metadata."""
    whole = hashlib.sha256(path.read_bytes()).hexdigest()
    if path.suffix != ".onnx":
        return whole
    model = onnx.load(path, load_external_data=False)
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        del node.metadata_props[:]
    return f"{whole} {hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()}"


def compare(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the files that differ in more than node metadata, and those that differ only there."""
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    metadata = [name for name in names if " " in old.get(name, "") and _bare(old[name]) == _bare(new.get(name, ""))]
    return [name for name in names if name not in metadata], metadata


def _bare(digests: str) -> str:
    return digests.partition(" ")[2]


def digests(checkout: Path, exports: Sequence[Export], folder: Path) -> list[dict[str, str]]:
    """Return the digests of each export's files by path, or its exit code under the name ``exit``."""
    commands = [[*each.arguments, "--out", str(folder / str(i))] for i, each in enumerate(exports)]
    codes = in_checkout(checkout, _EXPORT, input_text=json.dumps(commands), cache=folder / "cache").split("\n")
    ends = [line for line in codes if line.strip().isdigit()]
    rows = []
    for i, code in enumerate(ends):
        paths = [folder / str(i) / half / name for half in ("target", "drafter") for name in FILES]
        row = {f"{p.parent.name}/{p.name}": digest(p) for p in paths if p.is_file()}
        rows.append(row or {"exit": code})
    return rows


def main() -> int:
    """Export with both checkouts and print a line per export; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="reference checkout")
    parser.add_argument("after", type=Path, help="checkout to compare with it")
    parser.add_argument("--quick", action="store_true", help="the demo and one family only")
    parser.add_argument("--keep", type=Path, help="folder to save the exports of `before` in, and to reuse them from")
    options = parser.parse_args()
    families = FAMILIES[:1] if options.quick else FAMILIES
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        in_checkout(options.before, _MAKE_PAIRS, str(folder / "pairs"), *families)
        pairs = {"demo": ("--model", "demo")} | {
            name: ("--model", str(folder / "pairs" / name / "target"), "--draft", str(folder / "pairs" / name / "head"))
            for name in families
        }
        exports = exports_of(pairs)
        kept = options.keep / f"{'quick' if options.quick else 'all'}.json" if options.keep else None
        if kept and kept.is_file():
            before = json.loads(kept.read_text())
        else:
            before = digests(options.before, exports, folder / "before")
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(before))
        after = digests(options.after, exports, folder / "after")
    different = in_metadata = 0
    for export, old, new in zip(exports, before, after, strict=True):
        names, metadata = compare(old, new)
        different, in_metadata = different + len(names), in_metadata + len(metadata)
        same = f"exits {old['exit']}" if "exit" in old else f"{len(old) - len(metadata)} files identical"
        same += f", except node metadata in {', '.join(metadata)}" if metadata else ""
        print(f"{export.title:60} {'DIFFER: ' + ', '.join(names) if names else same}", flush=True)
    files = sum(len(row) for row in before if "exit" not in row)
    print(f"{files} files of {len(exports)} exports compared, {different} differ, {in_metadata} only in metadata")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
