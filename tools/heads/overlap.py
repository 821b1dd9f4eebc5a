"""Whether a dialogue shows what a head will be measured on."""

from __future__ import annotations

import re

SHARED_WORDS = 13  # the customary length of a run of words that two texts do not share by chance

_WORD = re.compile(r"\w+")
_DEFINED = re.compile(r"def\s+(\w+)\s*\(")


def runs(text: str) -> set[tuple[str, ...]]:
    """All runs of SHARED_WORDS words of `text`, in lower case; of a shorter text, all its words as one run."""
    words = _WORD.findall(text.lower())
    if len(words) <= SHARED_WORDS:
        return {tuple(words)} if words else set()
    return {tuple(words[i : i + SHARED_WORDS]) for i in range(len(words) - SHARED_WORDS + 1)}


class Held:
    """The texts to keep out of the training text: none of their runs of words, none of the functions they define."""

    def __init__(self, texts: list[str]):
        self.runs = {run for text in texts for run in runs(text)}
        self.short = sorted({len(run) for run in self.runs if len(run) < SHARED_WORDS})
        self.functions = {name for text in texts for name in _DEFINED.findall(text)}

    def shown_in(self, text: str) -> str | None:
        """What `text` shares with the held texts, or None."""
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
