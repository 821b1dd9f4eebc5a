"""Converts the fields of a body to a conversation and a generation.

Every field that changes the answer is honoured or refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from ...answer_styles import AnswerStyle
from ..forms import FormField, field_of, one_form
from ..generation import Conversation, Generation, sampling_params
from ..problems import HttpRefusal
from ..reading import parse_variant
from ..reasoning import styled
from ..server_fields import draft_of, given_fields, priority_of
from ..settings import ServerSettings
from ..tools import Tool, ToolChoice, function
from ..turns import Turns
from .bodies import (
    INERT_IN_TOOLS,
    ClientTool,
    CountBody,
    FreeChoice,
    LaterSystemBlock,
    MessagesBody,
    NamedChoice,
    RedactedThinkingBlock,
    SchemaFormat,
    TextBlock,
    Thinking,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from .context_management import first_with_thoughts
from .tool_results import text_of_blocks, text_of_result

_TEXT: dict[str, type[Struct]] = {"text": TextBlock}
_BLOCKS: dict[str, dict[str, type[Struct]]] = {
    "system": {**_TEXT, "mid_conv_system": LaterSystemBlock},
    "user": {**_TEXT, "tool_result": ToolResultBlock, "mid_conv_system": LaterSystemBlock},
    "assistant": {
        **_TEXT,
        "tool_use": ToolUseBlock,
        "thinking": ThinkingBlock,
        "redacted_thinking": RedactedThinkingBlock,
    },
}
_CHOICES: dict[str, type[Struct]] = {"auto": FreeChoice, "any": FreeChoice, "none": FreeChoice, "tool": NamedChoice}
_THINKING: dict[str, type[Thinking]] = {"enabled": Thinking, "adaptive": Thinking, "disabled": Thinking}
# Begins a block that some agents put before the system prompt. The block has a checksum that differs in every request:
# in the prompt, it would keep the prefix cache from matching anything after it.
_BILLING = "x-anthropic-billing-header:"
_OUTPUT_FORMAT = FormField("output_config.format", schema="output_config.format.schema")


def conversation_of(body: CountBody, style: AnswerStyle) -> Conversation:
    """Return the conversation of a body for a model of this style. Raises ``HttpRefusal`` with the place.

    An answer would continue a last message of the assistant if that is text.
    """
    turns = Turns()
    if body.system is not None:
        _add(turns, "system", body.system, "system")
    first = first_with_thoughts(body.context_management, body.messages)
    for at, message in enumerate(body.messages):
        _add(turns, message.role, message.content, f"messages[{at}].content", thinks=at >= first)
    tools, must_call, max_calls = _tool_choice(body.tool_choice).among(_tools(body.tools or []))
    effort = body.output_config.effort if body.output_config else None
    messages, is_open = turns.messages(), bool(body.messages) and body.messages[-1].role == "assistant"
    conversation = Conversation(
        messages,
        tools,
        chat_template_kwargs=body.chat_template_kwargs,
        must_call=must_call,
        max_calls=max_calls,
        add_generation_prompt=not is_open,
        continue_final_message=is_open and bool(messages) and _is_text(messages[-1]),
    )
    return styled(conversation, style, effort, thinks=_thinking(body)[0])


def generation_of(body: MessagesBody, style: AnswerStyle, settings: ServerSettings) -> Generation:
    """Convert a body to a generation. Raises ``HttpRefusal`` with the field.

    As in Anthropic's API, ``max_tokens`` may exceed the room in the context.
    """
    if body.max_tokens < 1:
        raise HttpRefusal(400, f"max_tokens must be 1 or more, not {body.max_tokens}", param="max_tokens")
    conversation = conversation_of(body, style)
    if not conversation.add_generation_prompt and not conversation.continue_final_message:
        path = f"messages[{len(body.messages) - 1}]"
        raise HttpRefusal(
            400,
            f"{path} is from the assistant, but has no text that the answer could continue; fix: end with text, with "
            "the results of the tools, or with a user message",
            param=path,
        )
    field, form = one_form(own_form(body), body.structured_outputs, settings.structured_outputs)
    fields: dict[str, Any] = {"max_tokens": body.max_tokens, "structured_outputs": form}
    if body.stop_sequences is not None:
        fields["stop"] = body.stop_sequences
    return Generation(
        conversation,
        sampling_params({**given_fields(body), **fields}, settings, {"stop": "stop_sequences"}),
        streams=bool(body.stream),
        num_speculative_tokens=body.num_speculative_tokens,
        draft=draft_of(body, body.model, settings),
        priority=priority_of(body, settings),
        reword=field_of(conversation, field, form).renamed,
    )


def own_form(body: CountBody) -> tuple[FormField, dict[str, Any]] | None:
    """Return the form of ``output_config.format``; None allows any text. Raises ``HttpRefusal`` for an unknown type."""
    output_format = body.output_config.format if body.output_config else None
    if output_format is None:
        return None
    wanted = parse_variant(output_format, {"json_schema": SchemaFormat}, _OUTPUT_FORMAT.name)
    return _OUTPUT_FORMAT, {"json": wanted.schema}


def _is_text(message: Mapping[str, Any]) -> bool:
    """Return True if an answer can continue this last turn."""
    return message["role"] == "assistant" and bool(message.get("content")) and "tool_calls" not in message


def shows_thoughts(body: CountBody) -> bool:
    """Return True if the answer includes the model's reasoning. Raises ``HttpRefusal`` for unknown options."""
    thinks, options = _thinking(body)
    return thinks and options.display != "omitted"


def _thinking(body: CountBody) -> tuple[bool, Thinking]:
    """Return whether the model should reason, and the other options. Raises ``HttpRefusal`` for unknown options."""
    if body.thinking is None:
        return True, Thinking()
    options = parse_variant(body.thinking, _THINKING, "thinking")
    return body.thinking["type"] != "disabled", options


def _add(turns: Turns, role: str, content: str | list[Any], path: str, *, thinks: bool = True) -> None:
    """Add one turn of the body, with its reasoning if it ``thinks``."""
    blocks: Iterator[tuple[str, Any]] = ((f"{path}[{at}]", each) for at, each in enumerate(content))
    if isinstance(content, str):
        turns.say(role, content)
        return
    for block_path, raw_block in blocks:
        block = parse_variant(raw_block, _BLOCKS[role], block_path)
        if isinstance(block, TextBlock):
            if role != "system" or not block.text.startswith(_BILLING):
                turns.say(role, block.text)
        elif isinstance(block, ToolUseBlock):
            turns.call(block.id, block.name, block.input)
        elif isinstance(block, ToolResultBlock):
            turns.answer_call(block.tool_use_id, text_of_result(block.content, f"{block_path}.content"))
        elif isinstance(block, LaterSystemBlock):
            turns.say("system", text_of_blocks(block.content, f"{block_path}.content"))
        elif isinstance(block, ThinkingBlock) and thinks:
            turns.think(block.thinking)


def _tools(entries: list[Any]) -> list[Tool]:
    tools = []
    for at, each in enumerate(entries):
        path = f"tools[{at}]"
        if isinstance(each, dict):
            each = INERT_IN_TOOLS.left_out(each, ClientTool.__struct_fields__, path)
        tool = parse_variant(each, {"custom": ClientTool}, path, default="custom")
        tools.append(function(path, tool.name, tool.description, tool.input_schema))
    return tools


def _tool_choice(value: Any) -> ToolChoice:
    if value is None:
        return ToolChoice()
    choice = parse_variant(value, _CHOICES, "tool_choice")
    kind, name = value["type"], choice.name if isinstance(choice, NamedChoice) else None
    repeats = not getattr(choice, "disable_parallel_tool_use", None)
    return ToolChoice(offers=kind != "none", requires=kind in ("any", "tool"), name=name, repeats=repeats)
