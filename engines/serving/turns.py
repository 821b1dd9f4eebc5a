"""Builds the messages of a conversation, in the format of OpenAI's chats, from an API's own items or blocks."""

from __future__ import annotations

from typing import Any


class Turns:
    """Messages of a conversation. What one role says without interruption is one message.

    Templates that require alternating roles accept such conversations.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}  # of called tools, by the id of the call

    def say(self, role: str, text: str) -> None:
        """Add text of "system", "user" or "assistant"."""
        message = self._of(role)
        message["content"] = [*message.get("content", ()), {"type": "text", "text": text}]

    def think(self, text: str) -> None:
        """Add reasoning of the assistant."""
        message = self._of("assistant")
        message["reasoning_content"] = message.get("reasoning_content", "") + text

    def call(self, identity: str, name: str, arguments: Any) -> None:
        """Add a tool call of the assistant; ``arguments`` are an object or its JSON text."""
        self._names[identity] = name
        call = {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        message = self._of("assistant")
        message["tool_calls"] = [*message.get("tool_calls", ()), call]

    def answer_call(self, identity: str, text: str) -> None:
        """Add the result of a tool call."""
        name = {"name": self._names[identity]} if identity in self._names else {}
        self.messages.append({"role": "tool", "tool_call_id": identity, **name, "content": text})

    def _of(self, role: str) -> dict[str, Any]:
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role})
        return self.messages[-1]
