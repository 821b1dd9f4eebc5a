"""Reasoning in conversations, for all APIs: the level that a body requests, and the reasoning of earlier answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..answer_styles import AnswerStyle
from .generation import Conversation
from .problems import HttpRefusal

NO_REASONING = "none"  # the level of an answer without reasoning
_CLOSEST = {NO_REASONING: "low", "minimal": "low", "xhigh": "high", "max": "high"}
LEVELS = ("low", "medium", "high", *_CLOSEST)  # levels that APIs have


def checked_effort(effort: str | None, path: str) -> str | None:
    """Return the level in the field ``path``. Raises ``HttpRefusal`` for one that no API has."""
    if effort is not None and effort not in LEVELS:
        raise HttpRefusal(
            400,
            f"{path} must be one of {', '.join(LEVELS)}; fix: send one of them, or remove the field",
            param=path,
            code="unsupported_parameter",
        )
    return effort


def styled(
    conversation: Conversation, style: AnswerStyle, effort: str | None = None, *, thinks: bool = True
) -> Conversation:
    """Return the conversation as the template of this style expects it.

    If the style has levels of reasoning, the closest one to ``effort`` becomes a template variable, and
    ``reasoning_content`` of a message that called a tool gets the template's key. If the template has a variable that
    turns reasoning off, it is set for ``NO_REASONING``, and unless the model ``thinks``. Variables of the conversation
    take precedence. Otherwise, the conversation stays as it is.
    """
    template_options = dict(conversation.chat_template_kwargs or {})
    if style.thought_switch and not (thinks and effort != NO_REASONING):
        return replace(conversation, chat_template_kwargs={style.thought_switch: False, **template_options})
    if not style.efforts:
        return conversation
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
