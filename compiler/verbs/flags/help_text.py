"""The text of ``--help``: plain lines in which every name stays whole, so that it can be copied.

typer's tables cut option names and environment variables on a terminal of 80 columns, and its plain text breaks lines
after hyphens.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_HYPHEN = "\u2011"  # at which no line is broken
_context: Any = TyperCommand.context_class  # typer's own or click's, by its version


class _WholeNames(_context.formatter_class):
    """Breaks lines at spaces alone."""

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(_kept(text))

    def write_dl(self, rows: Any, *args: Any, **kwargs: Any) -> None:
        """Write a list of names and what is said of each."""
        super().write_dl([(name, _kept(text)) for name, text in rows], *args, **kwargs)

    def getvalue(self) -> str:
        """Return all that was written."""
        return str(super().getvalue()).replace(_HYPHEN, "-")


class _Context(_context):
    formatter_class = _WholeNames


class Verb(TyperCommand):
    """A verb with such a help text."""

    context_class = _Context


class Verbs(TyperGroup):
    """A program or a group of verbs with such a help text."""

    context_class = _Context


def program(**options: Any) -> typer.Typer:
    """Return an empty program, or an empty group of verbs."""
    return typer.Typer(cls=Verbs, rich_markup_mode=None, **options)


def first_sentence(text: str | None) -> str:
    """Return the first paragraph of a docstring in one line, for the list of verbs; typer would cut it short."""
    return " ".join((text or "").split("\n\n")[0].split())


def _kept(text: str) -> str:
    return text.replace("-", _HYPHEN)
