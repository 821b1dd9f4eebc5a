"""Tools that a body offers and the calls that it requires, for all APIs. Tools have the format of OpenAI's chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .problems import HttpRefusal

Tool = dict[str, Any]


@dataclass(frozen=True)
class ToolChoice:
    """Which tools the answer may or must call.

    Without ``offers``, the model does not see the tools. With ``requires``, the answer consists of calls only; with
    ``name``, of one call of that tool. Without ``repeats``, the answer has at most one call.
    """

    offers: bool = True
    requires: bool = False
    name: str | None = None
    repeats: bool = True

    def among(self, tools: Sequence[Tool]) -> tuple[Sequence[Tool], Sequence[Tool], int | None]:
        """Return the tools to offer, those to call, and the highest number of calls: fields of a ``Conversation``.

        Raises ``HttpRefusal`` if there is no tool to call.
        """
        offered = tools if self.offers else []
        max_calls = None if self.repeats and self.name is None else 1
        if not self.requires:
            return offered, (), max_calls
        if not offered:
            raise HttpRefusal(
                400,
                "tool_choice requires a tool call, but tools is empty; fix: send tools, or remove tool_choice",
                param="tool_choice",
            )
        chosen = [each for each in offered if self.name is None or each["function"]["name"] == self.name]
        if not chosen:
            raise HttpRefusal(
                400,
                f"tool_choice names {str(self.name)[:100]!r}, which is not in tools; fix: use the name of one of the "
                "tools",
                param="tool_choice",
            )
        return offered, chosen, max_calls


def function(path: str, name: str, description: str | None, parameters: Any) -> Tool:
    """Return a tool. Raises ``HttpRefusal`` with ``path`` if it has no name."""
    if not name:
        raise HttpRefusal(400, f"{path} has no name", param=path)
    definition = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in definition.items() if value is not None}}
