"""Builds the messages of a conversation, in the format of OpenAI's chats, from an API's own items or blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class _RoleTurn:
    """A turn of one role; the result of a call also has the name and the id of the call."""

    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    of_call: dict[str, str] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role, **self.of_call}
        if self.texts:
            message["content"] = [{"type": "text", "text": text} for text in self.texts]
        elif not self.calls:
            message["content"] = ""  # templates read it, unless there are calls
        if self.thoughts:
            message["reasoning_content"] = "".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class Turns:
    """The turns of a conversation. What one role says without interruption is one message.

    Templates that require alternating roles accept such conversations.
    """

    def __init__(self) -> None:
        self._turns: list[_RoleTurn] = []
        self._names: dict[str, str] = {}  # of called tools, by the id of the call

    def say(self, role: str, text: str) -> None:
        """Add text of "system", "user" or "assistant"."""
        self._of(role).texts.append(text)

    def think(self, text: str) -> None:
        """Add reasoning of the assistant."""
        self._of("assistant").thoughts.append(text)

    def call(self, identity: str, name: str, arguments: Any) -> None:
        """Add a tool call of the assistant; ``arguments`` are an object or its JSON text."""
        self._names[identity] = name
        function = {"name": name, "arguments": arguments}
        self._of("assistant").calls.append({"id": identity, "type": "function", "function": function})

    def answer_call(self, identity: str, text: str) -> None:
        """Add the result of a tool call."""
        name = {"name": self._names[identity]} if identity in self._names else {}
        self._turns.append(_RoleTurn("tool", [text], of_call={"tool_call_id": identity, **name}))

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages."""
        return [turn.message() for turn in self._turns]

    def _of(self, role: str) -> _RoleTurn:
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_RoleTurn(role))
        return self._turns[-1]


def omitted(kind: str) -> str:
    """Return the text that stands for a part of a tool's result, of a ``kind`` that models of text do not read."""
    return f"[{kind} omitted: this model reads only text]"
