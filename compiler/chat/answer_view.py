"""An answer as it is written: the words of accepted drafts in a colour, and a count of tokens that moves along."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...engines import Delta

_DRAFTED, _DIM, _PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"
# Save the cursor, write where it would not wrap, and go back: what stands after the cursor is taken away later.
_ASIDE, _BACK, _CLEAR = "\x1b7\x1b[?7l", "\x1b[?7h\x1b8", "\x1b[K"
_TAB = 8
# What a model writes must not move the cursor, change colours or ring.
_HARMLESS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {13: ""}


def colours_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a terminal is to show colours: not with NO_COLOR (no-color.org), nor where it knows none."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb"


class AnswerView:
    """Writes one answer on a terminal of ``columns``, in ``colours`` or without.

    The count stands behind the text, where there is room for it, and goes when the text goes on. ``moves`` says whether
    the terminal can do that, ``drafts`` whether rounds have drafts, so that their tokens are worth a number.
    """

    def __init__(self, columns: int, *, colours: bool, moves: bool, drafts: bool) -> None:
        self._columns, self._colours, self._moves, self._drafts = columns, colours, moves, drafts
        self._column = self.tokens = self._rounds = 0
        self._has_count = False

    def show(self, delta: Delta) -> None:
        """Write a piece; every piece but the first is a round's."""
        self._rounds += 1 if self.tokens and delta.token_ids else 0
        self.tokens += len(delta.token_ids)
        written = "".join(self._coloured(self._placed(text), is_drafted=drafted) for text, drafted in delta.runs)
        sys.stdout.write((_CLEAR if self._has_count else "") + written + self._beside())
        sys.stdout.flush()

    def end(self) -> None:
        """Take the count away, and begin a new line."""
        sys.stdout.write((_CLEAR if self._has_count else "") + "\n")
        sys.stdout.flush()
        self._has_count = False

    @property
    def count(self) -> str:
        """Tokens so far, and of a round."""
        per_round = f", {self.per_round:.2f} per round" if self._rounds and self._drafts else ""
        return f"{self.tokens} token{'' if self.tokens == 1 else 's'}{per_round}"

    @property
    def per_round(self) -> float:
        """Mean tokens per round; the first token is from the prompt's pass."""
        return (self.tokens - 1) / self._rounds if self._rounds else 0.0

    def dimmed(self, text: str) -> str:
        """A text that is beside the matter."""
        return f"{_DIM}{text}{_PLAIN}" if self._colours else text

    def _coloured(self, text: str, *, is_drafted: bool) -> str:
        return f"{_DRAFTED}{text}{_PLAIN}" if self._colours and is_drafted and text else text

    def _placed(self, text: str) -> str:
        """The text without what moves a cursor; notes the column that it ends in."""
        from rich.cells import cell_len

        lines = text.translate(_HARMLESS).split("\n")
        for number, line in enumerate(lines):
            if number:
                self._column = 0
            for part_number, part in enumerate(line.split("\t")):
                if part_number:
                    self._column += _TAB - self._column % _TAB
                self._column += cell_len(part)
        self._column %= self._columns
        return "\n".join(lines)

    def _beside(self) -> str:
        """The count, if it fits on the line."""
        count = f"  [{self.count}]"
        self._has_count = self._moves and self._column + len(count) + 2 < self._columns
        return f"{_ASIDE}{self.dimmed(count)}{_BACK}" if self._has_count else ""
