"""What llguidance says is wrong with a grammar, in a line."""

from __future__ import annotations

from ...plugins.errors import UsageError
from ..requests.structured_outputs import NAME, StructuredOutputsParams

_MOST = 300  # characters
_OF_REGEX = "error: "
_NOISE = ("panic: ", "Parser Error: ", "parser error: ", "Lexer error: ", "lexer error: ")


def first_line(message: str) -> str:
    """Return the line that says it, without the words for its authors.

    It is the first, or that of a regular expression's parser; others show the grammar and what was reached of it.
    """
    lines = [" ".join(line.split()) for line in message.strip().splitlines()] or ["it gave no reason"]
    line = next((line.removeprefix(_OF_REGEX) for line in lines if line.startswith(_OF_REGEX)), lines[0])
    if line.startswith("NoExtension"):
        return "no token of the model's can follow"
    for noise in _NOISE:
        line = line.removeprefix(noise)
    return line if len(line) <= _MOST else line[: _MOST - 3] + "..."


def refused(form: StructuredOutputsParams, message: str) -> UsageError:
    """Return the error about a form that cannot be compiled."""
    return UsageError(
        f"{NAME}.{form.kind} cannot be followed", why=first_line(message), fix=f"change {NAME}.{form.kind}"
    )
