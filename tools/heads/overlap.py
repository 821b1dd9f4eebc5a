"""Detect overlap between training dialogues and evaluation prompts."""

from __future__ import annotations

import re

SHARED_WORDS = 13  # customary length of a word run that two texts do not share by chance

_WORD = re.compile(r"\w+")
_DEFINED = re.compile(r"def\s+(\w+)\s*\(")


def runs(text: str) -> set[tuple[str, ...]]:
    """Return all runs of SHARED_WORDS words of `text` in lower case; a shorter text is one run."""
    words = _WORD.findall(text.lower())
    if len(words) <= SHARED_WORDS:
        return {tuple(words)} if words else set()
    return {tuple(words[i : i + SHARED_WORDS]) for i in range(len(words) - SHARED_WORDS + 1)}


class Held:
    """The held-out texts: none of their word runs and none of their functions may occur in training text."""

    def __init__(self, texts: list[str]):
        self.runs = {run for text in texts for run in runs(text)}
        self.short = sorted({len(run) for run in self.runs if len(run) < SHARED_WORDS})
        self.functions = {name for text in texts for name in _DEFINED.findall(text)}

    def shown_in(self, text: str) -> str | None:
        """Return what `text` shares with the held-out texts, or None."""
        for name in _DEFINED.findall(text):
            if name in self.functions:
                return f"def {name}"
        words = _WORD.findall(text.lower())
        for size in (*self.short, SHARED_WORDS):
            for i in range(len(words) - size + 1):
                run = tuple(words[i : i + size])
                if run in self.runs:
                    return " ".join(run)
        return None
