"""Tool calls in the text of an answer, in the format of Hermes and Qwen models.

A call stands between ``<tool_call>`` and ``</tool_call>``. It is a JSON object with ``name`` and ``arguments`` (Hermes,
Qwen2.5, Qwen3), or Qwen3-Coder's ``<function=NAME><parameter=KEY>VALUE</parameter></function>``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .calls import DECODER, Thought, ToolCall, arguments_text, begun_size, has_half_pair, json_object

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAG = "<function="
END = "</function>"
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER, _END_OF_TEXT = re.compile("<parameter=([^>\n]+)>"), re.compile("(</parameter>)|(?=<parameter=)|\\Z")
_END_OF_JSON = re.compile(r"\s*</parameter>")


def frame(*, repeats: bool, must_call: bool) -> list[str]:
    """Return the Lark rules of one or more calls between the tags, which may follow any text unless they are a must."""
    more = ' ("\\n" one)*' if repeats else ""
    one = f'one: "{OPEN}\\n" call "\\n{CLOSE}"'
    if must_call:
        return [f"start: one{more}", one]
    begun = f'start: TEXT | begun "\\n" call "\\n{CLOSE}"{more}'  # the text is free until it contains the tag
    return [begun, one, f'begun[lazy]: BEFORE "{OPEN}"', "TEXT: /(?s:.*)/"]


class ToolCallReader:
    """Splits the text of one answer, as it grows, into visible text and calls.

    Text that cannot be parsed as a call stays visible. Text that could be the start of one is buffered. Whitespace
    after a call is dropped.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], max_calls: int | None = None, *, are_certain: bool = False
    ) -> None:
        """``tools`` have OpenAI's format and give the parameter types; at most ``max_calls`` calls are returned.

        If calls ``are_certain``, a closing tag that does not end a valid call is treated as part of the call, and a
        truncated call is omitted.
        """
        self._schemas = {each["function"]["name"]: each["function"].get("parameters") for each in tools}
        self._most, self._held, self._are_certain = max_calls, "", are_certain
        self.count = 0  # calls returned so far
        self._follows_call, self._shown = False, 0

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Add ``text``, and return the new visible text and complete calls."""
        self._held += text
        visible, calls = "", list[ToolCall]()
        while True:
            before, opened, after = self._held.partition(OPEN)
            inner, closed, rest = after.partition(CLOSE)
            if not opened or not (closed or is_last):
                break
            call = self._call(inner) if closed or not _is_cut(inner) else None
            while self._are_certain and call is None and closed:  # an argument may contain the closing tag
                more, closed, rest = rest.partition(CLOSE)
                inner = f"{inner}{CLOSE}{more}"
                call = self._call(inner) if closed or is_last else None
            if self._are_certain and call is None and not is_last:
                break
            self._held = rest
            is_text = call is None and not self._are_certain
            visible += self._visible(before + (opened + inner + closed if is_text else ""))
            self._follows_call = self._follows_call or call is not None
            if call is not None and (self._most is None or self.count < self._most):
                calls.append(ToolCall(self.count, *call, after=self._shown + len(visible)))
                self.count += 1
        shown = len(self._held) if is_last else len(before) if opened else len(before) - begun_size(before, OPEN)
        visible, self._held = visible + self._visible(self._held[:shown]), self._held[shown:]
        self._shown += len(visible)
        return visible, calls

    def take_thoughts(self) -> list[Thought]:
        """Return an empty list: this format does not mark reasoning."""
        return []

    def _visible(self, text: str) -> str:
        """Return the visible part of a text."""
        visible = text.lstrip() if self._follows_call else text
        self._follows_call = self._follows_call and not visible
        return visible

    def _call(self, inner: str) -> tuple[str, str] | None:
        """Return name and arguments of one call, or None if it is invalid."""
        if begun := _FUNCTION.match(inner):
            name, (arguments, is_whole) = begun[1].strip(), self._parameters(begun[1].strip(), inner[begun.end() :])
            if not name or (self._are_certain and not is_whole):
                return None
        else:
            call = json_object(inner)
            name, arguments = (call or {}).get("name"), (call or {}).get("arguments", {})
            if not isinstance(name, str) or not name or has_half_pair(name) or not isinstance(arguments, dict):
                return None
        try:
            return name, arguments_text(arguments)
        except ValueError:
            return None

    def _parameters(self, name: str, text: str) -> tuple[dict[str, Any], bool]:
        """Return the parameters between the tags of a function, and whether all tags are closed and all JSON is valid.

        A value is text, unless its schema has another type and the text is valid JSON. JSON may contain the tags.
        """
        body = text.rstrip().removesuffix(END)
        found, is_whole, at = {}, body != text.rstrip(), 0
        while begun := _PARAMETER.search(body, at):
            key, start = begun[1].strip(), begun.end()
            is_json = not is_returned_as_text(self._schema(name, key))
            if is_json and (value := _json_at(body, start)):
                found[key], at = value
                continue
            end = next(_END_OF_TEXT.finditer(body, start))  # the end of the body matches
            found[key] = body[start : end.start()].removeprefix("\n").removesuffix("\n")
            is_whole, at = is_whole and bool(end[1]) and not is_json, end.end()
        return found, is_whole and not body[at:].strip()

    def _schema(self, name: str, key: str) -> Any:
        """Return the schema of a parameter; None if there is none."""
        schema = self._schemas.get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        return properties.get(key) if isinstance(properties, Mapping) else None


def _json_at(text: str, start: int) -> tuple[Any, int] | None:
    """Return the JSON value that a closing tag follows, and the end of the tag; None for other text."""
    try:
        value, end = DECODER.raw_decode(text, len(text) - len(text[start:].lstrip()))
    except (ValueError, RecursionError):
        return None
    closed = _END_OF_JSON.match(text, end)
    return (value, closed.end()) if closed else None


def _is_cut(inner: str) -> bool:
    """Return True if a call in tags lacks its end, so that parameters may be missing or incomplete."""
    return inner.lstrip().startswith(TAG) and not inner.rstrip().endswith(END)


def is_returned_as_text(schema: Any) -> bool:
    """Return True if a parameter with this schema is written as plain text between its tags, not as JSON."""
    if not isinstance(schema, Mapping) or "type" in schema:
        return not isinstance(schema, Mapping) or schema["type"] == "string"
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    has_subschemas = any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref", "properties", "items"))
    return not has_subschemas and isinstance(values, list) and all(isinstance(each, str) for each in values)
