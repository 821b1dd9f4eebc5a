"""Reasoning in conversations, for all APIs: the level that a body requests, and the reasoning of earlier answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..text.answer_styles import Style
from .generation import Conversation

EFFORTS = ("low", "medium", "high")  # levels that the template of a "channels" model takes
_CLOSEST = {"minimal": "low", "xhigh": "high", "max": "high"}
LEVELS = (*EFFORTS, *_CLOSEST)  # levels that APIs have


def styled(conversation: Conversation, style: Style | None, effort: str | None = None) -> Conversation:
    """Return the conversation as the template of this style expects it.

    For a "channels" template, the closest of ``EFFORTS`` to ``effort`` becomes a template variable, and
    ``reasoning_content`` of a message that called a tool becomes ``thinking``. Other styles return the conversation
    unchanged.
    """
    if style != "channels":
        return conversation
    template_options = dict(conversation.chat_template_kwargs or {})
    arguments = (
        template_options if effort is None else {"reasoning_effort": _CLOSEST.get(effort, effort), **template_options}
    )
    messages = [_with_thinking(each) for each in conversation.messages]
    return replace(conversation, messages=messages, chat_template_kwargs=arguments or conversation.chat_template_kwargs)


def _with_thinking(message: Any) -> Any:
    if not isinstance(message, Mapping) or not message.get("tool_calls") or message.get("content"):
        return message
    thought = message.get("reasoning_content")
    return {**message, "thinking": thought} if isinstance(thought, str) and "thinking" not in message else message
