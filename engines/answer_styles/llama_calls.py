"""Tool calls as written by Llama 3: the answer consists of JSON with ``name`` and ``parameters``.

``<|python_tag|>`` may precede it, and ``;`` separates several calls. After that tag some models write
``NAME.call(KEY="VALUE")`` instead. JSON that names none of the tools is a normal answer.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .calls import DECODER, Thought, ToolCall, arguments_text
from .json_calls import json_call
from .record import AnswerStyle

TAG = "<|python_tag|>"
_PYTHON = re.compile(r"([\w-]+)\.call\(")


class LlamaCallReader:
    """Splits the text of one answer, as it grows, into visible text and calls.

    Text that could still become a call is buffered. After other text, everything that follows is visible text.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], max_calls: int | None = None, *, are_certain: bool = False
    ) -> None:
        """``tools`` have OpenAI's format; at most ``max_calls`` calls are returned."""
        del are_certain
        self._names = {each["function"]["name"] for each in tools}
        self._most, self._held, self._is_text = max_calls, "", False
        self._tried = 0  # end of the part of the current Python call that was parsed in vain
        self.count = 0  # calls returned so far

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Add ``text``, and return the new visible text and complete calls."""
        self._held += text
        calls = list[ToolCall]()
        while not self._is_text:
            rest = self._held.lstrip(" \t\r\n;") if self.count else self._held.lstrip().removeprefix(TAG).lstrip()
            if not rest or TAG.startswith(rest):
                break
            found, end = self._object(rest) if rest.startswith("{") else self._python(rest)
            if found is None:
                self._is_text = not self._may_be_call(rest)
                break
            self._held, self._tried = rest[end:], 0
            if self._most is None or self.count < self._most:
                calls.append(ToolCall(self.count, *found))
                self.count += 1
        if not (self._is_text or is_last):
            return "", calls
        visible, self._held = self._held, ""
        is_separator = self.count and not self._is_text and not visible.strip(" \t\r\n;")
        return ("" if is_separator else visible), calls

    def take_thoughts(self) -> list[Thought]:
        """Return an empty list: this format does not mark reasoning."""
        return []

    def _object(self, text: str) -> tuple[tuple[str, str] | None, int]:
        """Return the call at the start of a text and its end; None if it is not a call."""
        try:
            found, end = DECODER.raw_decode(text)
            arguments = arguments_text(found.get("parameters", found.get("arguments", {})))
        except (ValueError, RecursionError):
            return None, 0
        name = found.get("name")
        is_call = isinstance(name, str) and name in self._names and arguments.startswith("{")
        return ((name, arguments), end) if is_call else (None, 0)

    def _python(self, text: str) -> tuple[tuple[str, str] | None, int]:
        """Return the Python call at the start of a text and its end; None if it is not a call.

        The first parenthesis that completes an expression is its end, whatever follows: more may already be there.
        """
        begun = _PYTHON.match(text)
        if begun is None or begun[1] not in self._names:
            return None, 0
        while (at := text.find(")", max(begun.end(), self._tried))) >= 0:
            self._tried = at + 1
            if (arguments := _keyword_arguments(text[begun.end() : at])) is not None:
                return (begun[1], arguments), at + 1
        return None, 0

    def _may_be_call(self, text: str) -> bool:
        """Return True if this text can be the start of a call."""
        if text.startswith("{"):
            try:
                DECODER.raw_decode(text)
            except RecursionError:
                return False
            except ValueError:
                return True  # incomplete, or invalid
            return False
        name, dot, _ = text.partition(".")
        if dot:
            return name in self._names and (text.startswith(f"{name}.call(") or f"{name}.call(".startswith(text))
        return any(each.startswith(text) for each in self._names)


def _keyword_arguments(text: str) -> str | None:
    """Return keyword arguments in Python's syntax as JSON; None if they are incomplete or invalid."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not all(each.arg for each in call.keywords):
            return None
        arguments = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        json.dumps(arguments, allow_nan=False)
        return arguments_text(arguments)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _frame(*, repeats: bool, must_call: bool) -> list[str]:
    del repeats, must_call  # the template writes one call, and nothing else
    return ["start: call"]


def _calls(name: str, function: str, path: str, schema: Mapping[str, Any], json_of: Callable[[Any], str]) -> list[str]:
    return json_call(name, function, path, schema, json_of, key="parameters")


def _is_of(templates: Sequence[str]) -> bool:
    signs = ("tools", '{"name": ', '"parameters": ', "ipython")
    return any(all(sign in template for sign in signs) for template in templates)


STYLE = AnswerStyle("llama", _is_of, LlamaCallReader, _frame, _calls)
