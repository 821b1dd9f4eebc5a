"""Formats of tool calls and reasoning that models are trained on, one file each, and the table of them.

A model's style is detected from its chat templates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from . import channels, default_calls, function_tags, json_calls, llama_calls
from .calls import Thought, ToolCall
from .record import AnswerForm, AnswerReader, AnswerStyle, Tools
from .thoughts import tags_of

__all__ = [
    "DEFAULT", "STYLES", "AnswerForm", "AnswerReader", "AnswerStyle", "Thought", "ToolCall", "Tools", "register",
    "style_of",
]  # fmt: skip

STYLES: dict[str, AnswerStyle] = {}  # the first one that recognizes a template is the model's
DEFAULT = default_calls.STYLE  # for templates that no style recognizes


def register(style: AnswerStyle) -> None:
    """Add a style to the table."""
    STYLES[style.name] = style


for _each in (channels.STYLE, function_tags.STYLE, json_calls.STYLE, llama_calls.STYLE):
    register(_each)


def style_of(templates: Iterable[str]) -> AnswerStyle:
    """Return the style of a model with these templates, which is ``DEFAULT`` if they have no known format of calls.

    It has the tags of ``thoughts`` that the templates have, unless it marks reasoning itself.
    """
    sources = [*templates]
    style = next((style for style in STYLES.values() if style.is_of(sources)), DEFAULT)
    tags = None if style.marks_reasoning else tags_of(sources)
    return style if tags is None else replace(style, thoughts=tags)
