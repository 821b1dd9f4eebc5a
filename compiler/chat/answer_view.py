"""Display of an answer while it is generated: accepted drafts in colour, and a running token count."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...engines import Delta

_DRAFTED, _DIM, _PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"
# Save the cursor, write without wrapping, and restore the cursor; the text after it is cleared later.
_ASIDE, _BACK, _CLEAR = "\x1b7\x1b[?7l", "\x1b[?7h\x1b8", "\x1b[K"
_TAB = 8
# Model output must not move the cursor, change colours or ring the bell.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {13: ""}


def use_colours() -> bool:
    """Return True if the terminal supports colours and NO_COLOR (no-color.org) is not set."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


class AnswerView:
    """Writes one answer on a terminal of ``columns``, with or without ``colours``.

    The token count follows the text if it fits on the line, and is cleared when more text arrives; ``moves`` tells
    whether the terminal supports that. ``drafts`` adds the tokens per round.
    """

    def __init__(self, columns: int, *, colours: bool, moves: bool, drafts: bool) -> None:
        self._columns, self._colours, self._moves, self._drafts = columns, colours, moves, drafts
        self._column = self.tokens = self._rounds = 0
        self._has_count = False

    def show(self, delta: Delta) -> None:
        """Write a piece of text; each piece after the first is one round."""
        self._rounds += 1 if self.tokens and delta.token_ids else 0
        self.tokens += len(delta.token_ids)
        written = "".join(self._coloured(self._placed(text), is_drafted=drafted) for text, drafted in delta.runs)
        sys.stdout.write((_CLEAR if self._has_count else "") + written + self._count_on_line())
        sys.stdout.flush()

    def end(self) -> None:
        """Clear the count and start a new line."""
        sys.stdout.write((_CLEAR if self._has_count else "") + "\n")
        sys.stdout.flush()
        self._has_count = False

    @property
    def count(self) -> str:
        """The tokens so far and per round, as text."""
        per_round = f", {self.per_round:.2f} per round" if self._rounds and self._drafts else ""
        return f"{self.tokens} token{'' if self.tokens == 1 else 's'}{per_round}"

    @property
    def per_round(self) -> float:
        """Mean tokens per round, without the first token, which the prefill generates."""
        return (self.tokens - 1) / self._rounds if self._rounds else 0.0

    def dimmed(self, text: str) -> str:
        """Return a secondary text, dimmed if the terminal has colours."""
        return f"{_DIM}{text}{_PLAIN}" if self._colours else text

    def _coloured(self, text: str, *, is_drafted: bool) -> str:
        return f"{_DRAFTED}{text}{_PLAIN}" if self._colours and is_drafted and text else text

    def _placed(self, text: str) -> str:
        """Return the text without control characters, and track the column that it ends in."""
        from rich.cells import cell_len

        lines = text.translate(_ESCAPES).split("\n")
        for number, line in enumerate(lines):
            if number:
                self._column = 0
            for part_number, part in enumerate(line.split("\t")):
                if part_number:
                    self._column += _TAB - self._column % _TAB
                self._column += cell_len(part)
        self._column %= self._columns
        return "\n".join(lines)

    def _count_on_line(self) -> str:
        """Return the count with its control sequences, if it fits on the line."""
        count = f"  [{self.count}]"
        self._has_count = self._moves and self._column + len(count) + 2 < self._columns
        return f"{_ASIDE}{self.dimmed(count)}{_BACK}" if self._has_count else ""
