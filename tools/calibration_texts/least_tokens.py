"""A lower bound on the tokens of a text, for any vocabulary."""

from __future__ import annotations

import re

# A vocabulary may contain whole words with a preceding sign, runs of signs, and often two Chinese or Japanese
# characters in one token.
_DENSE = r"\u3040-\u30ff\u3400-\u9fff"
_PIECE = re.compile(rf"(?P<dense>[{_DENSE}]+)|[^\w\s]?[^\W{_DENSE}]+|[^\w\s]+")
_CHARACTERS = 2


def least_tokens(text: str) -> int:
    """Return a lower bound for vocabularies that keep words apart, as those of all supported models do."""
    runs = (found.group("dense") for found in _PIECE.finditer(text))
    return sum(1 if run is None else len(run) // _CHARACTERS for run in runs)


def beginning(text: str, tokens: int) -> str:
    """Return the first lines of ``text`` with at least this many tokens, or all of them."""
    lines: list[str] = []
    count = 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        count += least_tokens(line)
        if count >= tokens:
            break
    return "".join(lines)
