"""Tool calls of models whose chat template has no format for them: tools, calls and results as text of messages.

A system message describes the tools by their JSON schemas and says how to call them. Calls have the format of Hermes
and Qwen models (``json_calls.py``), and results are placed in a user message, between their own tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import json_calls
from .tagged_calls import CLOSE, OPEN

RESULT, END_OF_RESULT = "<tool_response>", "</tool_response>"
_SYSTEM = ("system", "developer")
_DESCRIPTION = f"""# Tools

You can call these functions. Each line describes one, with a JSON schema of its arguments:
<tools>
{{tools}}
</tools>

To call a function, write its name and its arguments as a JSON object between these tags, and nothing after it:
{OPEN}
{{example}}
{CLOSE}
The result is then given to you between {RESULT} and {END_OF_RESULT}. Answer without a call if no function helps."""
_EXAMPLE = '{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}'


def in_default_form(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, takes_system: bool) -> list[Any]:
    """Return the messages of a conversation with its tools, calls and results as text.

    ``messages`` are those of ``messages_of``. The tools are described in the system message, or in the first message
    of the user unless the template ``takes_system`` messages. Results and what the user says next are one message,
    because many templates require alternating roles.
    """
    written = list[dict[str, Any]]()
    follows_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        converted = _with_calls(message) if not is_result else _result(message)
        if converted["role"] == "user" and written and written[-1]["role"] == "user" and (is_result or follows_result):
            written[-1] = {
                **written[-1],
                "content": f"{written[-1].get('content', '')}\n{converted.get('content', '')}",
            }
        else:
            written.append(converted)
        follows_result = is_result
    return _with_description(written, tools, takes_system=takes_system) if tools else written


def _with_description(messages: list[dict[str, Any]], tools: Sequence[Any], *, takes_system: bool) -> list[Any]:
    listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in tools)
    text = _DESCRIPTION.format(tools=listed, example=_EXAMPLE)
    if messages[0]["role"] in _SYSTEM:
        first = messages[0]
        return [{**first, "content": f"{first.get('content', '')}\n\n{text}".lstrip("\n")}, *messages[1:]]
    if takes_system or messages[0]["role"] != "user":
        return [{"role": "system", "content": text}, *messages]
    return [{**messages[0], "content": f"{text}\n\n{messages[0].get('content', '')}"}, *messages[1:]]


def _with_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its calls as text behind its content."""
    calls = message.get("tool_calls")
    texts = [text for each in calls if (text := _call(each))] if isinstance(calls, list) else []
    if not texts:
        return dict(message)
    fields = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**fields, "content": "\n".join([*([fields["content"]] if fields.get("content") else []), *texts])}


def _call(value: Any) -> str | None:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    call = {"name": function["name"], "arguments": function.get("arguments", {})}
    return f"{OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSE}"


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": f"{RESULT}\n{message.get('content', '')}\n{END_OF_RESULT}"}


STYLE = replace(
    json_calls.STYLE, name="default", is_of=lambda templates: False, is_in_template=False, follows_text=True
)
