"""Excerpts of this project's own files: beginnings of programs, stretches of its pages."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from calibration_texts.least_tokens import beginning, least_tokens

# How many of what the files of a pattern have.
CODE = {
    "compiler/**/*.py": 9, "engines/**/*.py": 8, "graphs/**/*.py": 5, "plugins/**/*.py": 3, "tests/**/test_*.py": 4,
    "plugins/**/*.cpp": 3, "plugins/**/*.h": 3, "plugins/**/*.cu": 2, "engines/serving/page/*.html": 1,
    "Makefile": 1, "pyproject.toml": 1,
}  # fmt: skip
PROSE = {"docs/decisions/*.md": 20, "docs/*.md": 22}
_NOT_PROSE = {"cli.md"}  # made from the program


@dataclass(frozen=True)
class Excerpt:
    """Some of the project's text, by the file that it begins in."""

    path: str
    text: str


def code_excerpts(root: Path, tokens: int, seed: int) -> list[Excerpt]:
    """Return the beginnings of files of the project in ``root``, of so many tokens at least each."""
    return _sample({pattern: _beginnings(root, pattern, tokens) for pattern in CODE}, CODE, seed)


def prose_excerpts(root: Path, tokens: int, seed: int) -> list[Excerpt]:
    """Return stretches of the project's pages, of so many tokens at least each; the next page follows a short one."""
    return _sample({pattern: _stretches(root, pattern, tokens) for pattern in PROSE}, PROSE, seed)


def _sample(found: dict[str, list[Excerpt]], wanted: dict[str, int], seed: int) -> list[Excerpt]:
    """The same ones for the same files and seed. Raises ``SystemExit`` where a pattern finds too few."""
    chance, taken = random.Random(seed), []
    for pattern, excerpts in found.items():
        if len(excerpts) < wanted[pattern]:
            raise SystemExit(f"{pattern} has text for {len(excerpts)} excerpts, and {wanted[pattern]} are wanted")
        taken += chance.sample(excerpts, wanted[pattern])
    return taken


def _files(root: Path, pattern: str) -> list[tuple[str, str]]:
    paths = (path for path in sorted(root.glob(pattern)) if path.is_file() and path.name not in _NOT_PROSE)
    return [(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def _beginnings(root: Path, pattern: str, tokens: int) -> list[Excerpt]:
    every = [Excerpt(path, beginning(text, tokens)) for path, text in _files(root, pattern)]
    return [each for each in every if least_tokens(each.text) >= tokens]


def _stretches(root: Path, pattern: str, tokens: int) -> list[Excerpt]:
    found, path, lines, count = [], "", list[str](), 0
    for name, text in _files(root, pattern):
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            path = path or f"{name}:{number}"
            lines.append(line)
            count += least_tokens(line)
            if count >= tokens and not line.strip():
                found.append(Excerpt(path, "".join(lines)))
                path, lines, count = "", [], 0
    return found
