"""Calls of tools as Llama 3 writes them: the answer is JSON with ``name`` and ``parameters``, and nothing else.

``<|python_tag|>`` may stand before it, several are parted by ``;``. With that tag some models write
``NAME.call(KEY="VALUE")`` instead. JSON that names none of the tools is an answer like any other.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .tool_calls import ToolCall

TAG = "<|python_tag|>"
_PYTHON = re.compile(r"\s*([\w-]+)\.call\((.*)\)[\s;]*", re.DOTALL)
_DECODER = json.JSONDecoder()


class LlamaCallReader:
    """Parts the text of one answer, as it grows, into what is said and which calls are made.

    What could still become a call waits. When something else was said, all that follows is said as well.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]], most: int | None = None) -> None:
        """``tools`` are as OpenAI has them; no more than ``most`` calls are told."""
        self._names = {each["function"]["name"] for each in tools}
        self._most, self._held, self._speaks = most, "", False
        self.count = 0  # of the calls that were told

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Return what is said, and the calls that are whole, with ``text`` after what came before."""
        self._held += text
        calls = list[ToolCall]()
        while not self._speaks:
            rest = self._held.lstrip(" \t\r\n;") if self.count else self._held.lstrip().removeprefix(TAG).lstrip()
            if not rest or TAG.startswith(rest):
                break
            found, end = self._object(rest) if rest.startswith("{") else (None, 0)
            if found is None and (python := self._python(rest)):
                found, end = python, len(rest)
            if found is None:
                self._speaks = not self._may_be_call(rest)
                break
            self._held = rest[end:]
            if self._most is None or self.count < self._most:
                calls.append(ToolCall(self.count, *found))
                self.count += 1
        if not (self._speaks or is_last):
            return "", calls
        said, self._held = self._held, ""
        return ("" if self.count and not said.strip(" \t\r\n;") else said), calls

    def take_thought(self) -> str:
        """Return nothing: such a model says all that it thinks."""
        return ""

    def _object(self, text: str) -> tuple[tuple[str, str] | None, int]:
        """The call at the beginning of a text, and where it ends; None for what is none."""
        try:
            found, end = _DECODER.raw_decode(text)
            arguments = json.dumps(found.get("parameters", found.get("arguments", {})), ensure_ascii=False)
        except (ValueError, RecursionError):
            return None, 0
        name = found.get("name")
        is_call = isinstance(name, str) and name in self._names and arguments.startswith("{")
        return ((name, arguments), end) if is_call else (None, 0)

    def _python(self, text: str) -> tuple[str, str] | None:
        """The call that a text is in Python's words, None for what is none."""
        found = _PYTHON.fullmatch(text)
        if found is None or found[1] not in self._names:
            return None
        try:
            call = ast.parse(f"f({found[2]})", mode="eval").body
            if not isinstance(call, ast.Call) or call.args or not all(each.arg for each in call.keywords):
                return None
            given = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
            return found[1], json.dumps(given, ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return None

    def _may_be_call(self, text: str) -> bool:
        """Whether more text could make a call of this beginning."""
        if text.startswith("{"):
            try:
                _DECODER.raw_decode(text)
            except RecursionError:
                return False
            except ValueError:
                return True  # it has not ended, or never will
            return False
        name, dot, _ = text.partition(".")
        if dot:
            return name in self._names and (text.startswith(f"{name}.call(") or f"{name}.call(".startswith(text))
        return any(each.startswith(text) for each in self._names)
