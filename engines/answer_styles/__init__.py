"""Formats of tool calls and reasoning that models are trained on, one file each, and the table of them.

A model's style is detected from its chat templates.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import channels, default_calls, function_tags, json_calls, llama_calls
from .calls import Thought, ToolCall
from .record import AnswerReader, AnswerStyle, Tools

__all__ = ["DEFAULT", "STYLES", "AnswerReader", "AnswerStyle", "Thought", "ToolCall", "Tools", "register", "style_of"]

STYLES: dict[str, AnswerStyle] = {}  # the first one that recognizes a template is the model's
DEFAULT = default_calls.STYLE  # for templates that no style recognizes


def register(style: AnswerStyle) -> None:
    """Add a style to the table."""
    STYLES[style.name] = style


for _each in (channels.STYLE, function_tags.STYLE, json_calls.STYLE, llama_calls.STYLE):
    register(_each)


def style_of(templates: Iterable[str]) -> AnswerStyle:
    """Return the style of a model with these templates, which is ``DEFAULT`` if they have no known format of calls."""
    sources = [*templates]
    return next((style for style in STYLES.values() if style.is_of(sources)), DEFAULT)
