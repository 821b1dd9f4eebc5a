"""The text of ``--help``: options in named sections, as plain lines in which every name stays whole for copying.

Typer's tables cut option names and environment variables on a terminal of 80 columns, and its plain text breaks lines
after hyphens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Sections of options, in this order, after the common options, which have none.
MODEL, DRAFT, SAMPLING, PRECISION, SIZES = "Model", "Draft", "Sampling", "Precision", "Sizes"
CERTIFICATE = "Certificate"
ONNX_RUNTIME, TENSORRT, RUN = "ONNX Runtime", "TensorRT", "Run"
_ORDER = (MODEL, DRAFT, SAMPLING, PRECISION, CERTIFICATE, SIZES, ONNX_RUNTIME, TENSORRT, RUN)
_CLICK_FACTS = re.compile(r"\s*\[((?:default|env var|required|x[<>]|-?[\d.]+<)[^\]]*)\]$")
_LIMITS = {
    re.compile(r"(-?[\d.]+)<=x<=(-?[\d.]+)"): r"\1 to \2",
    re.compile(r"x>=(-?[\d.]+)"): r"at least \1",
    re.compile(r"x>(-?[\d.]+)"): r"more than \1",
    re.compile(r"x<=(-?[\d.]+)"): r"at most \1",
    re.compile(r"env var: (\w+)"): r"environment variable: \1",
}
_HYPHEN = "\u2011"  # lines do not break at this one
_context: Any = TyperCommand.context_class  # typer's own or click's, by its version


class _UnbrokenNames(_context.formatter_class):
    """A formatter that breaks lines only at spaces."""

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(_with_hard_hyphens(text))

    def write_dl(self, rows: Any, *args: Any, **kwargs: Any) -> None:
        """Write a list of names and their descriptions."""
        super().write_dl([(name, _with_hard_hyphens(text)) for name, text in rows], *args, **kwargs)

    def getvalue(self) -> str:
        """Return the formatted text."""
        return str(super().getvalue()).replace(_HYPHEN, "-")


class _Context(_context):
    formatter_class = _UnbrokenNames


class Verb(TyperCommand):
    """A verb whose options are listed in sections."""

    context_class = _Context

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and each section of options."""
        for title, params in sections(self):
            if rows := rows_of(params, ctx):
                with formatter.section(title):
                    formatter.write_dl(rows)


class Verbs(TyperGroup):
    """A program or a group of verbs."""

    context_class = _Context


def program(**options: Any) -> typer.Typer:
    """Return an empty program, or an empty group of verbs."""
    return typer.Typer(cls=Verbs, rich_markup_mode=None, **options)


def sections(verb: Any) -> list[tuple[str, list[Any]]]:
    """Return the titles of a verb's help sections, with the arguments or options of each."""
    arguments = [param for param in verb.params if param.param_type_name == "argument"]
    found: dict[str, list[Any]] = {}
    for param in verb.get_params(typer.Context(verb)):
        if param.param_type_name != "argument" and not param.hidden:
            found.setdefault(getattr(param, "rich_help_panel", None) or "", []).append(param)
    common = found.pop("", [])
    for param in [param for param in common if param.name == "help" and found]:
        common.remove(param)
        found.setdefault(RUN, []).append(param)
    parts = [("Arguments", arguments), ("Common options" if found else "Options", common)]
    parts += sorted(found.items(), key=lambda item: _ORDER.index(item[0]))
    return [(title, params) for title, params in parts if params]


def rows_of(params: Iterable[Any], ctx: Any) -> list[tuple[str, str]]:
    """Return the name and the description of each parameter that is not hidden.

    Limits and defaults are in words: ``(default: 4; at least 1)`` in place of click's ``[default: 4; x>=1]``.
    """
    records = (param.get_help_record(ctx) for param in params)
    return [(name.replace(" range>", ">"), _in_words(text)) for name, text in filter(None, records)]


def first_sentence(text: str | None) -> str:
    """Return the first paragraph of a docstring in one line, for the list of verbs; Typer would cut it short."""
    return " ".join((text or "").split("\n\n")[0].split())


def _in_words(text: str) -> str:
    found = _CLICK_FACTS.search(text)
    if not found:
        return text
    facts, before = found[1], text[: found.start()]
    for form, words in _LIMITS.items():
        facts = form.sub(words, facts)
    if before.endswith(")") and not facts.startswith("default:"):  # the description states its own default
        start = before.rfind("(default")
        if start >= 0:
            return f"{before[:-1]}; {facts})"
    return f"{before} ({facts})"


def _with_hard_hyphens(text: str) -> str:
    return text.replace("-", _HYPHEN)
