"""How many tokens a text has at least, whatever the vocabulary."""

from __future__ import annotations

import re

# A vocabulary may hold whole words, with a sign before them, and runs of signs; of Chinese and Japanese often two
# characters as one.
_DENSE = r"\u3040-\u30ff\u3400-\u9fff"
_PIECE = re.compile(rf"(?P<dense>[{_DENSE}]+)|[^\w\s]?[^\W{_DENSE}]+|[^\w\s]+")
_CHARACTERS = 2


def least_tokens(text: str) -> int:
    """Return a bound for vocabularies that keep words apart, as those of all models here do."""
    runs = (found.group("dense") for found in _PIECE.finditer(text))
    return sum(1 if run is None else len(run) // _CHARACTERS for run in runs)


def beginning(text: str, tokens: int) -> str:
    """Return the first lines of ``text`` that have so many tokens at least, or all of them."""
    lines: list[str] = []
    count = 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        count += least_tokens(line)
        if count >= tokens:
            break
    return "".join(lines)
