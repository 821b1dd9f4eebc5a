"""What a body of OpenAI's means to a model that answers in channels: how hard it thinks, and what it thought before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...text.answer_styles import Style
from .bodies import ChatBody

EFFORTS = ("low", "medium", "high")


def for_style(body: ChatBody, style: Style | None) -> ChatBody:
    """The body with what the templates of such models take, and clients of OpenAI's API say otherwise.

    ``reasoning_effort`` becomes a variable of the template, and ``reasoning_content`` of a message that called a tool
    its ``thinking``. Of any other style it is the body as it is.
    """
    if style != "channels":
        return body
    given, effort = dict(body.chat_template_kwargs or {}), body.reasoning_effort
    if effort in EFFORTS:
        given, effort = {"reasoning_effort": effort, **given}, None
    messages = [_with_thinking(each) for each in body.messages]
    return msgspec.structs.replace(
        body, messages=messages, reasoning_effort=effort, chat_template_kwargs=given or body.chat_template_kwargs
    )


def _with_thinking(message: Any) -> Any:
    if not isinstance(message, Mapping) or not message.get("tool_calls") or message.get("content"):
        return message
    thought = message.get("reasoning_content")
    return {**message, "thinking": thought} if isinstance(thought, str) and "thinking" not in message else message
