"""Validates the messages of a chat and its other inputs, and copies them as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...plugins.errors import UsageError
from ..answer_styles.calls import json_object
from ..requests.arguments import flag, integer, number, refusal, require_at_most, text_of
from .template_files import MAX_BYTES

Message = Mapping[str, Any]
_LIST_OF_MESSAGES = "a list of messages, each with a role and a content"
# Options of a conversation that are not variables of its template.
TEMPLATE_OPTIONS = ("add_generation_prompt", "continue_final_message", "chat_template")
_MAX_DEPTH = 32  # nesting of tools and other values; typical JSON schemas have about ten levels


def messages_of(name: str, value: Any, *, is_question: bool = True) -> list[dict[str, Any]]:
    """Return a conversation as plain dicts, ready for a template.

    A message has a ``role`` and a ``content``: text, or a list of parts ``{"type": "text", "text": ...}``, which are
    joined by newlines. Other keys (``name``, ``tool_calls``, ``tool_call_id``, ...) are passed on if they are valid
    JSON values; keys with None are dropped. The content may be missing if there is something else instead. Arguments of
    ``tool_calls`` that are a JSON object as text, as in OpenAI's API, are converted to that object, which templates
    expect.

    Raises ``UsageError`` with the position of the problem: for other types, for no message at all, and for a
    conversation that ends with the assistant's turn although it ``is_question``. The order of roles is left to the
    template.
    """
    if isinstance(value, Mapping) or not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise refusal(name, _LIST_OF_MESSAGES, value)
    if not value:
        raise UsageError(f"{name} is empty", why="there is nothing to answer", fix="pass at least one user message")
    messages = [_message(f"{name}[{i}]", each) for i, each in enumerate(value)]
    if is_question and messages[-1]["role"] == "assistant":
        raise UsageError(
            f"the last message, {name}[{len(messages) - 1}], is from the assistant",
            why="there is nothing left to answer",
            fix="end with a message from the user or from a tool, or set continue_final_message or "
            "add_generation_prompt",
        )
    return messages


def tools_of(name: str, value: Any) -> list[Any] | None:
    """Return tools or documents, a list of JSON objects, as plain values; None stays None. Raises ``UsageError``."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(each, Mapping) for each in value):
        raise refusal(name, "a list of dicts", value)
    return [plain(f"{name}[{i}]", each) for i, each in enumerate(value)]


def template_of(value: Any) -> str:
    """Return the text of a chat template. Raises ``UsageError`` for another type, and for a text that is too long."""
    text = text_of("chat_template", value)
    require_at_most("chat_template", len(text), MAX_BYTES, "characters")
    return text


def template_arguments_of(name: str, value: Any) -> dict[str, Any]:
    """Return template variables by name; None is an empty dict. Raises ``UsageError``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refusal(name, "a dict of template variables", value)
    for taken in ("messages", "tools", "documents", *TEMPLATE_OPTIONS):
        if taken in value:
            raise UsageError(
                f"{name} must not contain {taken!r}",
                why=f"{taken} is a separate argument",
                fix=f"remove {taken} from {name}",
            )
    return {text_of(f"a key of {name}", key): plain(f"{name}[{key!r}]", each, 1) for key, each in value.items()}


def plain(name: str, value: Any, depth: int = 0) -> Any:
    """Return a copy in plain types (str, int, float, bool, None, list, dict), the only ones templates may get.

    Raises ``UsageError`` with the position of a value that JSON does not support.
    """
    if depth > _MAX_DEPTH:
        raise UsageError(f"{name} is nested more than {_MAX_DEPTH} levels deep", fix="pass values with fewer levels")
    if isinstance(value, str):
        return text_of(name, value)
    if isinstance(value, Mapping):
        return {
            text_of(f"a key of {name}", key): plain(f"{name}[{key!r}]", each, depth + 1) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{i}]", each, depth + 1) for i, each in enumerate(value)]
    if value is None:
        return None
    for kind in (flag, integer):
        try:
            return kind(name, value)
        except UsageError:
            continue
    try:
        return number(name, value, float("-inf"))
    except UsageError:
        raise refusal(name, "a JSON value", value) from None


def _message(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise refusal(name, "a dict with a role and a content", value)
    message = {key: each for key, each in value.items() if each is not None}
    role, content = message.pop("role", None), message.pop("content", None)
    if not isinstance(role, str) or not role:
        raise refusal(f"{name}['role']", 'a str such as "system", "user" or "assistant"', role)
    if content is None and not message:
        raise refusal(f"{name}['content']", "a str, or a list of text parts", content)
    checked: dict[str, Any] = {"role": text_of(f"{name}['role']", role)}
    if content is not None:
        checked["content"] = _content(f"{name}['content']", content)
    checked |= {text_of(f"a key of {name}", key): plain(f"{name}[{key!r}]", message[key], 1) for key in message}
    for call in checked["tool_calls"] if isinstance(checked.get("tool_calls"), list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
            found = json_object(text.strip() or "{}")  # some models write nothing for no arguments
            function["arguments"] = text if found is None else found
    return checked


def _content(name: str, value: Any) -> str:
    """Return the text of a message, from a string or from parts."""
    if not isinstance(value, list | tuple):
        if not isinstance(value, str):
            raise refusal(name, "a str, or a list of text parts", value)
        return text_of(name, value)
    parts = []
    for index, part in enumerate(value):
        path = f"{name}[{index}]"
        if isinstance(part, str):
            parts.append(text_of(path, part))
            continue
        if not isinstance(part, Mapping):
            raise refusal(path, 'a part {"type": "text", "text": ...}', part)
        if part.get("type", "text") != "text":
            raise UsageError(
                f"{path} has type {part['type']!r}",
                why="only text is supported",
                fix="pass parts of type 'text'",
            )
        parts.append(text_of(f"{path}['text']", part.get("text")))
    return "\n".join(parts)
