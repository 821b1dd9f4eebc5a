"""Questions that a user types at a terminal."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ...plugins.errors import UsageError

_PROMPT, _MORE, _FENCE = "> ", ". ", '"""'


class Keyboard:
    """Reads questions at a terminal, with line editing if Python has readline."""

    def __init__(self) -> None:
        self._readline: Any = None
        with suppress(ImportError):  # some Python builds lack it
            import readline

            self._readline = readline

    def has_typed(self) -> bool:
        """Return True if the line being edited is not empty."""
        return bool(self._readline and self._readline.get_line_buffer())

    def read(self) -> str | None:
        """Return the next question, or None at the end of input; triple quotes enclose a multi-line question.

        Raises ``UsageError`` for invalid UTF-8 and passes Ctrl-C on.
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
            raise UsageError("the input is not UTF-8", why=error.reason, fix="type the text again") from None
        lines[-1] = lines[-1].rstrip().removesuffix(_FENCE)
        return "\n".join(lines).strip()
