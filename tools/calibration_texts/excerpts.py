"""Excerpts of this project's own files: beginnings of programs, passages of its pages."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from calibration_texts.least_tokens import beginning, least_tokens

# Excerpts wanted by file pattern.
CODE = {
    "compiler/**/*.py": 9, "engines/**/*.py": 8, "graphs/**/*.py": 5, "plugins/**/*.py": 3, "tests/**/test_*.py": 4,
    "plugins/**/*.cpp": 3, "plugins/**/*.h": 3, "plugins/**/*.cu": 2, "engines/serving/page/*.html": 1,
    "Makefile": 1, "pyproject.toml": 1,
}  # fmt: skip
PROSE = {"docs/decisions/*.md": 20, "docs/*.md": 22}
_NOT_PROSE = {"cli.md"}  # generated from the program


@dataclass(frozen=True)
class Excerpt:
    """Text of the project, identified by the file in which it starts."""

    path: str
    text: str


def code_excerpts(root: Path, tokens: int, seed: int) -> list[Excerpt]:
    """Return the beginnings of project files in ``root``, each with at least this many tokens."""
    return _sample({pattern: _beginnings(root, pattern, tokens) for pattern in CODE}, CODE, seed)


def prose_excerpts(root: Path, tokens: int, seed: int) -> list[Excerpt]:
    """Return passages of the project's pages, of at least this many tokens; a short page continues with the next."""
    return _sample({pattern: _stretches(root, pattern, tokens) for pattern in PROSE}, PROSE, seed)


def _sample(found: dict[str, list[Excerpt]], wanted: dict[str, int], seed: int) -> list[Excerpt]:
    """Sample excerpts deterministically. Raises ``SystemExit`` if a pattern yields too few."""
    chance, taken = random.Random(seed), []
    for pattern, excerpts in found.items():
        if len(excerpts) < wanted[pattern]:
            raise SystemExit(f"{pattern} yields {len(excerpts)} excerpts, but {wanted[pattern]} are needed")
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
