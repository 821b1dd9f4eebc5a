"""One-line messages from llguidance's grammar errors."""

from __future__ import annotations

from ...plugins.errors import UsageError
from ..requests.structured_outputs import NAME, StructuredOutputsParams

_MAX = 300  # characters
_OF_REGEX = "error: "
_NOISE = ("panic: ", "Parser Error: ", "parser error: ", "Lexer error: ", "lexer error: ")


def first_line(message: str) -> str:
    """Return the line with the reason, without internal prefixes.

    This is the first line, or that of the regular expression parser; other lines show the grammar and the progress.
    """
    lines = [" ".join(line.split()) for line in message.strip().splitlines()] or ["no reason was given"]
    line = next((line.removeprefix(_OF_REGEX) for line in lines if line.startswith(_OF_REGEX)), lines[0])
    if line.startswith("NoExtension"):
        return "no token of the vocabulary can follow"
    for noise in _NOISE:
        line = line.removeprefix(noise)
    return line if len(line) <= _MAX else line[: _MAX - 3] + "..."


def refused(form: StructuredOutputsParams, message: str) -> UsageError:
    """Return the error for a form that cannot be compiled."""
    return UsageError(
        f"{NAME}.{form.kind} cannot be compiled", why=first_line(message), fix=f"correct {NAME}.{form.kind}"
    )
