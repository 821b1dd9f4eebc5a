"""Where questions come from: a person at a terminal, or the lines of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ...plugins.errors import UsageError
from ..console.given_text import decoded

_PROMPT, _MORE, _FENCE = "> ", ". ", '"""'
_MOST_BYTES = 2**24  # of a line: more than any context holds, and a pipe need not have lines


class Keyboard:
    """Reads questions at a terminal, with editing and the arrow keys where Python has readline."""

    def __init__(self) -> None:
        self._readline: Any = None
        with suppress(ImportError):  # Python may be built without it
            import readline

            self._readline = readline

    def has_typed(self) -> bool:
        """Whether there is something on the line that is being edited."""
        return bool(self._readline and self._readline.get_line_buffer())

    def read(self) -> str | None:
        """Return the next question, of several lines where it stands between triple quotes; None at the end of input.

        Raises ``UsageError`` for bytes that are no text, and lets Ctrl-C through.
        """
        try:
            line = input(_PROMPT)
            if not line.startswith(_FENCE):
                return line.strip()
            lines = [line.removeprefix(_FENCE)]
            while not lines[-1].rstrip().endswith(_FENCE):
                lines.append(input(_MORE))
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise UsageError("what was typed is not UTF-8", why=error.reason, fix="type it anew") from None
        lines[-1] = lines[-1].rstrip().removesuffix(_FENCE)
        return "\n".join(lines).strip()


def piped() -> Iterator[str]:
    """Yield the lines of standard input that are not empty, each a question. Raises ``UsageError`` for no text."""
    if sys.stdin is None:
        return
    number = 0
    while line := sys.stdin.buffer.readline(_MOST_BYTES + 1):
        number += 1
        if len(line) > _MOST_BYTES:
            raise UsageError(
                f"line {number} of standard input has more than {_MOST_BYTES // 2**20} MiB",
                why="no context is that long",
                fix="pipe in lines, each of them a question",
            )
        if question := decoded(f"line {number} of standard input", line).strip():
            yield question
