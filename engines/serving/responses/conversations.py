"""Converts the fields of a body to a conversation and a generation.

Every field that changes the answer is honoured or refused by name.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...answer_styles import AnswerStyle
from ..forms import FormField, field_of, one_form
from ..generation import Conversation, Generation, sampling_params
from ..problems import HttpRefusal
from ..reading import parse_variant
from ..reasoning import checked_effort, styled
from ..server_fields import draft_of, given_fields, priority_of
from ..settings import ServerSettings
from ..tools import ToolChoice
from ..turns import Turns, omitted
from .bodies import (
    INCLUDES,
    INERT_IN_REASONING,
    INERT_IN_TEXT,
    UNSUPPORTED_INCLUDES,
    AnyObject,
    AnyText,
    CustomCallItem,
    FunctionCallItem,
    FunctionChoice,
    FunctionOutputItem,
    MessageItem,
    NamedSchema,
    ReasoningItem,
    RefusalPart,
    ResponsesBody,
    TextPart,
)
from .offered_tools import Member, OfferedTools, offered_tools

Item = dict[str, Any]
_ITEMS: dict[str, type[Struct]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionOutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": FunctionOutputItem,
    "reasoning": ReasoningItem,
}
_INPUT: dict[str, type[TextPart | RefusalPart]] = {"input_text": TextPart}
_PARTS: dict[str, type[TextPart | RefusalPart]] = {**_INPUT, "output_text": TextPart, "refusal": RefusalPart}
_NOT_READ = {"input_image": "image", "input_file": "file"}  # parts of results
_REASONING: dict[str, type[TextPart | RefusalPart]] = {"reasoning_text": TextPart, "text": TextPart}
_FORMATS: dict[str, type[Struct]] = {"text": AnyText, "json_object": AnyObject, "json_schema": NamedSchema}
_TEXT_FORMAT = FormField("text.format", schema="text.format.schema")
RENAMED = {"max_tokens": "max_output_tokens", "messages": "input"}  # the API's names of engine fields


def items_of(body: ResponsesBody) -> list[Any]:
    """Return the new items of a body."""
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": body.input}]
    return body.input


def generation_of(
    body: ResponsesBody, before: Sequence[Item], room: int, style: AnswerStyle, settings: ServerSettings
) -> Generation:
    """Convert a body to a generation that continues the items ``before``; ``room`` is how many new tokens fit.

    Raises ``HttpRefusal`` with the field.
    """
    max_tokens = body.max_output_tokens
    if max_tokens is not None and max_tokens < 1:
        raise HttpRefusal(400, f"max_output_tokens must be 1 or more, not {max_tokens}", param="max_output_tokens")
    _check_includes(body.include or [])
    conversation = conversation_of(body, before, style)
    _require_question(conversation.messages, len(items_of(body)))
    field, form = one_form(_format(body.text), body.structured_outputs, settings.structured_outputs)
    fields = {"max_tokens": room if max_tokens is None else max_tokens, "structured_outputs": form}
    return Generation(
        conversation,
        sampling_params({**given_fields(body), **fields}, settings, RENAMED),
        streams=bool(body.stream),
        num_speculative_tokens=body.num_speculative_tokens,
        draft=draft_of(body, body.model, settings),
        priority=priority_of(body, settings),
        requested_tokens=None if max_tokens is None else ("max_output_tokens", max_tokens),
        reword=field_of(conversation, field, form).renamed,
    )


def conversation_of(body: ResponsesBody, before: Sequence[Item], style: AnswerStyle) -> Conversation:
    """Return the conversation of a body that continues the items ``before``. Raises ``HttpRefusal`` with the place."""
    offered, choice = offered_tools(body.tools or []), _tool_choice(body)
    turns = Turns()
    if body.instructions is not None:
        turns.say("system", body.instructions)
    for each in before:
        _add(turns, each, offered, "previous_response_id")
    for at, each in enumerate(items_of(body)):
        _add(turns, each, offered, f"input[{at}]")
    if choice.requires:
        offered.require_function()
    tools, must_call, max_calls = choice.among(offered.functions)
    messages = turns.messages()
    conversation = Conversation(
        messages,
        tools,
        chat_template_kwargs=body.chat_template_kwargs,
        must_call=must_call,
        max_calls=max_calls,
        add_generation_prompt=not messages or _is_answerable(messages[-1]),
    )
    return styled(conversation, style, _effort(body.reasoning))


def _require_question(messages: Sequence[Mapping[str, Any]], items: int) -> None:
    """Raise ``HttpRefusal`` unless the last turn can be answered. The body has so many ``items``."""
    if messages and (messages[-1]["role"] != "assistant" or (items and _is_answerable(messages[-1]))):
        return
    path, problem = ("input", "is empty") if not items else (f"input[{items - 1}]", "is a call or reasoning")
    raise HttpRefusal(
        400,
        f"{path} {problem}, so there is nothing to answer; fix: end with a message, or with the result of a call",
        param=path,
    )


def _is_answerable(turn: Mapping[str, Any]) -> bool:
    """Return True if a new answer can follow this turn; what the assistant says may be followed by more."""
    return turn["role"] != "assistant" or bool(turn.get("content") and "tool_calls" not in turn)


def _add(turns: Turns, raw_item: Any, offered: OfferedTools, path: str) -> None:
    """Add one item to the conversation; calls name functions as they are ``offered``."""
    item = parse_variant(raw_item, _ITEMS, path, default="message")
    if isinstance(item, MessageItem):
        role = "system" if item.role == "developer" else item.role  # templates know no developer
        turns.say(role, _text(item.content, _PARTS, f"{path}.content"))
    elif isinstance(item, FunctionCallItem):
        turns.call(item.call_id, offered.name_of(Member(item.namespace, item.name)), item.arguments)
    elif isinstance(item, CustomCallItem):
        turns.call(item.call_id, item.name, {"input": item.input})
    elif isinstance(item, FunctionOutputItem):
        turns.answer_call(item.call_id, _result(item.output, f"{path}.output"))
    elif isinstance(item, ReasoningItem):
        thought = _text(item.content or [], _REASONING, f"{path}.content")
        if thought := thought or opened(item.encrypted_content):
            turns.think(thought)


def _text(content: str | list[Any], kinds: Mapping[str, type[TextPart | RefusalPart]], path: str) -> str:
    if isinstance(content, str):
        return content
    parts = [parse_variant(each, kinds, f"{path}[{at}]") for at, each in enumerate(content)]
    return "\n".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in parts)


def _result(output: str | list[Any], path: str) -> str:
    """Return the result of a tool. It stays in the conversation, so images and files are omitted and not refused."""
    if isinstance(output, str):
        return output
    texts = []
    for at, each in enumerate(output):
        kind = _NOT_READ.get(str(each.get("type"))) if isinstance(each, dict) else None
        texts.append(omitted(kind) if kind else parse_variant(each, {"input_text": TextPart}, f"{path}[{at}]").text)
    return "\n".join(texts)


def opaque_reasoning(thought: str) -> str:
    """Return reasoning as an opaque text, which clients without a store send back. It is encoded, not encrypted."""
    return base64.b64encode(thought.encode()).decode()


def opened(text: str | None) -> str:
    """Return the reasoning in a text from ``opaque_reasoning``; an empty text for one from another server."""
    try:
        return base64.b64decode(text or "", validate=True).decode()
    except ValueError:
        return ""


def _tool_choice(body: ResponsesBody) -> ToolChoice:
    choice, repeats = body.tool_choice, body.parallel_tool_calls is not False
    if choice is None or isinstance(choice, str):
        if choice not in (None, "none", "auto", "required"):
            raise HttpRefusal(
                400,
                'tool_choice must be "none", "auto", "required", or {"type": "function", "name": ...}',
                param="tool_choice",
                code="unsupported_parameter",
            )
        return ToolChoice(offers=choice != "none", requires=choice == "required", repeats=repeats)
    name = parse_variant(choice, {"function": FunctionChoice}, "tool_choice").name
    return ToolChoice(requires=True, name=name, repeats=repeats)


def is_structured(body: ResponsesBody) -> bool:
    """Return True if a body sets the format of the answer. Raises ``HttpRefusal`` for an unknown format."""
    return body.structured_outputs is not None or _format(body.text) is not None


def _format(text: dict[str, Any] | None) -> tuple[FormField, dict[str, Any]] | None:
    """Return the form of ``text.format``; None allows any text."""
    left = INERT_IN_TEXT.left_out(text or {}, ("format",), "text")
    text_format = left.pop("format", None)
    if left:
        raise HttpRefusal(400, f"invalid request body: unknown field `{next(iter(left))[:100]}` in text", param="text")
    if text_format is None:
        return None
    wanted = parse_variant(text_format, _FORMATS, _TEXT_FORMAT.name)
    if isinstance(wanted, NamedSchema):
        return _TEXT_FORMAT, {"json": wanted.schema}
    return (_TEXT_FORMAT, {"json_object": True}) if isinstance(wanted, AnyObject) else None


def _effort(reasoning: dict[str, Any] | None) -> str | None:
    """Return the level of reasoning. Raises ``HttpRefusal`` for another."""
    left = INERT_IN_REASONING.left_out(reasoning or {}, ("effort",), "reasoning")
    effort: str | None = left.pop("effort", None)
    if left:
        name = next(iter(left))[:100]
        raise HttpRefusal(400, f"invalid request body: unknown field `{name}` in reasoning", param="reasoning")
    return checked_effort(effort, "reasoning.effort")


def _check_includes(names: Sequence[str]) -> None:
    for at, name in enumerate(names):
        if name not in INCLUDES:
            known = "is not supported by this server" if name in UNSUPPORTED_INCLUDES else "is unknown"
            raise HttpRefusal(
                400,
                f"include[{at}] {name[:100]!r} {known}; fix: remove the entry",
                param=f"include[{at}]",
                code="unsupported_parameter",
            )
