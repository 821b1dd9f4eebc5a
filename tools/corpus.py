"""The training text of the demo pair: Python source of the standard library found on this machine.

python tools/corpus.py        prints what would be used (files, bytes, digest)

The standard library is a good small corpus: every machine with Python has it, its licence allows redistribution,
and its text is regular enough for a four-million-parameter model to learn.
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

# Tests repeat fixtures, the others are tables or programs-as-data: both teach a small model to recite, not to write.
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
# Generated when Python is built; they differ between machines and carry their paths.
SKIP_PREFIXES = ("_sysconfigdata", "config-")

# A held-out file should be long enough to cut several prompts from and not so long that it dominates the loss.
HELD_OUT_BYTES = range(6_000, 60_000)


@dataclass(frozen=True)
class SourceFile:
    """One document: its path relative to the library root (POSIX form) and its text."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """The two halves of the corpus, and what identifies them."""

    train: list[SourceFile]
    held_out: list[SourceFile]
    digest: str
    python_version: str


def _wanted(relative: Path) -> bool:
    if SKIP_FOLDERS & set(relative.parts) or relative.as_posix() in SKIP_FILES:
        return False
    return not any(part.startswith(SKIP_PREFIXES) for part in relative.parts)


def read_files(root: Path) -> list[SourceFile]:
    """ASCII source files below `root`, sorted by name, without exact duplicates."""
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
    """sha256 over names and contents, each length-prefixed so that no two corpora can collide by concatenation."""
    sha = hashlib.sha256()
    for file in files:
        for part in (file.name.encode(), file.text.encode()):
            sha.update(len(part).to_bytes(8, "big"))
            sha.update(part)
    return sha.hexdigest()


def load_corpus(root: Path | None = None) -> Corpus:
    """Read the corpus and split it by file, always in the same way for the same files."""
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
