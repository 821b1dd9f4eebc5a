"""The demo pair's training text: Python source of the standard library found on this machine.

python tools/corpus.py        prints the selection (files, bytes, digest)

The standard library is a good small corpus: it comes with every Python, its licence allows redistribution, and its text
is regular enough for a four-million-parameter model to learn.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_FILES = 12
SPLIT_SEED = 20
MIN_BYTES = 500

# Tests repeat fixtures; the others are tables or programs-as-data. Both teach a small model to recite.
SKIP_FOLDERS = {
    "site-packages",
    "test",
    "tests",
    "idle_test",
    "encodings",
    "lib2to3",
    "pydoc_data",
    "lib-dynload",
    "__pycache__",
}
SKIP_FILES = {"html/entities.py", "locale.py", "stringprep.py", "keyword.py", "this.py"}
# Generated when Python is built: they differ between machines and contain their paths.
SKIP_PREFIXES = ("_sysconfigdata", "config-")

# A held-out file must be long enough for several prompts, and short enough not to dominate the loss.
HELD_OUT_BYTES = range(6_000, 60_000)


@dataclass(frozen=True)
class SourceFile:
    """One document: its path relative to the library root (POSIX form) and its text."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """The two halves of the corpus, and its identity."""

    train: list[SourceFile]
    held_out: list[SourceFile]
    digest: str
    python_version: str


def _wanted(relative: Path) -> bool:
    if SKIP_FOLDERS & set(relative.parts) or relative.as_posix() in SKIP_FILES:
        return False
    return not any(part.startswith(SKIP_PREFIXES) for part in relative.parts)


def read_files(root: Path) -> list[SourceFile]:
    """Return ASCII source files below `root`, sorted by name, without exact duplicates."""
    found: list[SourceFile] = []
    seen: set[bytes] = set()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not _wanted(relative):
            continue
        raw = path.read_bytes()
        if len(raw) < MIN_BYTES or not raw.isascii() or raw in seen:
            continue
        seen.add(raw)
        found.append(SourceFile(relative.as_posix(), raw.decode("ascii").replace("\r\n", "\n")))
    return found


def digest_of(files: list[SourceFile]) -> str:
    """Return the sha256 of names and contents, each length-prefixed so that concatenation cannot cause collisions."""
    sha = hashlib.sha256()
    for file in files:
        for part in (file.name.encode(), file.text.encode()):
            sha.update(len(part).to_bytes(8, "big"))
            sha.update(part)
    return sha.hexdigest()


def load_corpus(root: Path | None = None) -> Corpus:
    """Read the corpus and split it by file, deterministically."""
    files = read_files(root or Path(sysconfig.get_paths()["stdlib"]))
    candidates = [file.name for file in files if len(file.text) in HELD_OUT_BYTES]
    if len(candidates) <= HELD_OUT_FILES:
        raise SystemExit(f"only {len(files)} usable source files found: is the standard library installed as source?")
    held_names = set(random.Random(SPLIT_SEED).sample(candidates, HELD_OUT_FILES))
    train = [file for file in files if file.name not in held_names]
    held_out = [file for file in files if file.name in held_names]
    random.Random(SPLIT_SEED).shuffle(train)
    return Corpus(train, held_out, digest_of(files), platform.python_version())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of source files (default: this Python's standard library)")
    corpus = load_corpus(parser.parse_args().root)
    for name, files in (("train", corpus.train), ("held out", corpus.held_out)):
        print(f"{name}: {len(files)} files, {sum(len(file.text) for file in files):,} bytes")
    print("held-out files:", ", ".join(file.name for file in corpus.held_out))
    print(f"Python {corpus.python_version}, digest {corpus.digest}")


if __name__ == "__main__":
    main()
