"""Prompts of a benchmark from a JSON Lines file, such as the questions of SPEED-Bench and Spec-Bench.

A line has ``turns`` (only the first is used), ``messages``, ``prompt`` or ``text``, and may have a ``category``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...plugins.errors import UsageError
from ..bundled.prompts import Prompt
from ..console.input_text import file_text

_IDS = ("question_id", "task_id", "id")
_TEXTS = ("turns", "messages", "prompt", "text")
_DEFAULT_CATEGORY = "prompts"
_FORM = 'use lines such as {"category": "writing", "turns": ["..."]}, {"messages": [...]} or {"prompt": "..."}'


def read_prompts(path: Path) -> list[Prompt]:
    """Return the prompts of a file; their ``kind`` is the category.

    Raises ``UsageError`` for an invalid line, and for a file that cannot be read or is too long.
    """
    lines = file_text("--prompts", path).split("\n")  # texts may contain other line separators
    prompts = [_prompt(f"{path}:{at}", at, line) for at, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise UsageError(f"{path} has no prompts", fix=_FORM)
    return prompts


def _prompt(origin: str, number: int, line: str) -> Prompt:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{origin} is not valid JSON", why=str(error), fix=_FORM) from None
    if not isinstance(content, Mapping):
        raise UsageError(f"{origin} is not a JSON object", fix=_FORM)
    text = _text(content)
    if not text:
        raise UsageError(
            f"{origin} has no prompt", why=f"the text must be in one of the fields {', '.join(_TEXTS)}", fix=_FORM
        )
    name = next((content[key] for key in _IDS if key in content), number)
    category = content.get("category") or _DEFAULT_CATEGORY
    return Prompt(str(name), text, str(category))


def _text(content: Mapping[str, Any]) -> str:
    """Return the text of a prompt: of several turns, the first of the user; empty if there is none."""
    turns = content.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return turns[0]
    messages = content.get("messages")
    if isinstance(messages, list):
        of_user = (each for each in messages if isinstance(each, Mapping) and each.get("role") == "user")
        first = next(of_user, {}).get("content")
        return first if isinstance(first, str) else ""
    single = content.get("prompt", content.get("text"))
    return single if isinstance(single, str) else ""
