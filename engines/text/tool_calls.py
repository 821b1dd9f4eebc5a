"""Calls of tools in the text of an answer, as the models of the field were taught to write them.

A call stands between ``<tool_call>`` and ``</tool_call>``. Inside is a JSON object with ``name`` and ``arguments``
(Hermes, Qwen2.5, Qwen3), or Qwen3-Coder's ``<function=NAME><parameter=KEY>VALUE</parameter></function>``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAG = "<function="
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_FARTHEST = sys.float_info.max
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """A function to be called, the ``at``-th of an answer; ``arguments`` are a JSON object as text."""

    at: int
    name: str
    arguments: str


class ToolCallReader:
    """Parts the text of one answer, as it grows, into what is said and which calls are made.

    What cannot be read as a call is text, as it stands. What could be the beginning of one waits. Space behind a call
    is left out.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], most: int | None = None, *, are_certain: bool = False
    ) -> None:
        """``tools`` are as OpenAI has them, and say of which type a parameter is; no more than ``most`` are told.

        Where calls ``are_certain``, what looks like the end of one and is not is a part of it.
        """
        self._schemas = {each["function"]["name"]: each["function"].get("parameters") for each in tools}
        self._most, self._held, self._are_certain = most, "", are_certain
        self.count = 0  # of the calls that were told
        self._follows_call = False

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Return what is said, and the calls that are whole, with ``text`` after what came before."""
        self._held += text
        said, calls = "", list[ToolCall]()
        while True:
            before, opened, after = self._held.partition(OPEN)
            inner, closed, rest = after.partition(CLOSE)
            if not opened or not (closed or is_last):
                break
            call = self._call(inner)
            while self._are_certain and call is None and closed:  # by the same words in a text of its arguments
                more, closed, rest = rest.partition(CLOSE)
                inner = f"{inner}{CLOSE}{more}"
                call = self._call(inner)
            if self._are_certain and call is None and not is_last:
                break
            self._held = rest
            said += self._said(before + (opened + inner + closed if call is None else ""))
            self._follows_call = self._follows_call or call is not None
            if call is not None and (self._most is None or self.count < self._most):
                calls.append(ToolCall(self.count, *call))
                self.count += 1
        shown = len(self._held) if is_last else len(before) if opened else len(before) - _begun(before)
        said, self._held = said + self._said(self._held[:shown]), self._held[shown:]
        if self._are_certain and self.count:
            said = ""  # a call that was cut short is none, and nothing else was said
        return said, calls

    def take_thought(self) -> str:
        """Return nothing: what such a model thinks is a part of what it says."""
        return ""

    def _said(self, text: str) -> str:
        """What is told of a text."""
        told = text.lstrip() if self._follows_call else text
        self._follows_call = self._follows_call and not told
        return told

    def _call(self, inner: str) -> tuple[str, str] | None:
        """Name and arguments of one call; None for what is none."""
        if function := _FUNCTION.fullmatch(inner):
            name = function[1].strip()
            found = {
                key.strip(): self._value(name, key.strip(), value) for key, value in _PARAMETER.findall(function[2])
            }
            return name, json.dumps(found, ensure_ascii=False)
        call = json_object(inner)
        name, arguments = (call or {}).get("name"), (call or {}).get("arguments", {})
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        return name, json.dumps(arguments, ensure_ascii=False)

    def _value(self, name: str, key: str, text: str) -> Any:
        """A parameter as its schema has it: text, unless that says another type and the value is one of JSON."""
        value = text.removeprefix("\n").removesuffix("\n")
        schema = self._schemas.get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if is_told_as_text(properties.get(key) if isinstance(properties, Mapping) else None):
            return value
        try:
            return json.loads(value, parse_constant=_no_number, parse_float=_finite)
        except (ValueError, RecursionError):
            return value


def is_told_as_text(schema: Any) -> bool:
    """Whether a parameter of this schema stands between its tags as it is, and not as JSON."""
    if not isinstance(schema, Mapping) or "type" in schema:
        return not isinstance(schema, Mapping) or schema["type"] == "string"
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    says_more = any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref", "properties", "items"))
    return not says_more and isinstance(values, list) and all(isinstance(each, str) for each in values)


def json_object(text: str) -> dict[str, Any] | None:
    """The object that a text of JSON is; None for any other text."""
    try:
        found = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    """A number, the farthest there is for one that is farther: JSON has no other name for it."""
    return max(-_FARTHEST, min(_FARTHEST, float(number)))


def _begun(text: str) -> int:
    """How many characters at the end of a text may be the beginning of a call."""
    return next((size for size in range(min(len(text), len(OPEN) - 1), 0, -1) if text.endswith(OPEN[:size])), 0)
