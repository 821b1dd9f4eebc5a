"""Reasoning in conversations, for all APIs: the level that a body requests, and the reasoning of earlier answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..answer_styles import AnswerStyle
from .generation import Conversation

_CLOSEST = {"minimal": "low", "xhigh": "high", "max": "high"}
LEVELS = ("low", "medium", "high", *_CLOSEST)  # levels that APIs have


def styled(conversation: Conversation, style: AnswerStyle, effort: str | None = None) -> Conversation:
    """Return the conversation as the template of this style expects it.

    If the style has levels of reasoning, the closest one to ``effort`` becomes a template variable, and
    ``reasoning_content`` of a message that called a tool gets the template's key. Otherwise, the conversation stays as
    it is.
    """
    if not style.efforts:
        return conversation
    template_options = dict(conversation.chat_template_kwargs or {})
    arguments = (
        template_options if effort is None else {"reasoning_effort": _CLOSEST.get(effort, effort), **template_options}
    )
    messages = [_with_thinking(each, style.thought_key) for each in conversation.messages]
    return replace(conversation, messages=messages, chat_template_kwargs=arguments or conversation.chat_template_kwargs)


def _with_thinking(message: Any, key: str) -> Any:
    if not isinstance(message, Mapping) or not message.get("tool_calls") or message.get("content"):
        return message
    thought = message.get("reasoning_content")
    return {**message, key: thought} if isinstance(thought, str) and key not in message else message
