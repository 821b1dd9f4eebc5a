"""Tool calls of Hermes, Qwen2.5 and Qwen3: a JSON object with ``name`` and ``arguments`` between tags."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .record import AnswerStyle
from .tagged_calls import CLOSE, OPEN, ToolCallReader, frame


def json_call(
    name: str,
    function: str,
    path: str,
    schema: Mapping[str, Any],
    json_of: Callable[[Any], str],
    key: str = "arguments",
) -> list[str]:
    """Return the rules of a call as a JSON object with two keys in the usual order; ``key`` is that of the arguments.

    The other arguments are those of ``record.WriteCall``.
    """
    del path
    begin = '{"name": ' + json.dumps(function, ensure_ascii=False) + f', "{key}": '
    return [f'{name}: {quoted(begin)} {name}_a "}}"', f"{name}_a: {json_of(schema)}"]


def quoted(text: str) -> str:
    """Return a Lark string literal."""
    return json.dumps(text, ensure_ascii=False)


def _is_of(templates: Sequence[str]) -> bool:
    return any(OPEN in template and "tools" in template for template in templates)


STYLE = AnswerStyle("json", _is_of, ToolCallReader, frame, json_call, markers=(OPEN, CLOSE))
