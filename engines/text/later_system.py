"""System messages within a conversation, for chat templates that write only the first one.

Clients put instructions and news between the turns. Some templates drop such messages without an error, and others
reject them; their text is then part of what the user says at the same place.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

_SYSTEM = ("system", "developer")


def has_later_system(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a message after the first is the system's or a developer's."""
    return any(each["role"] in _SYSTEM for each in messages[1:])


def in_user_turns(messages: Sequence[Mapping[str, Any]], written: Container[str]) -> list[dict[str, Any]]:
    """Return the messages, with later system messages as text of the user unless the template has ``written`` the role.

    The text begins the next message if that is the user's, and otherwise ends the one before or is one of its own. It
    never separates a call from its results. A system message directly after the first one continues that one.
    """
    turns = [dict(messages[0])]
    held: list[str] = []
    for message in messages[1:]:
        role, content = message["role"], message.get("content", "")
        if role in _SYSTEM and role not in written:
            if not held and turns[-1]["role"] in _SYSTEM:
                turns[-1] = _joined(turns[-1], turns[-1].get("content", ""), content)
            else:
                held.append(content)
        elif role == "user":
            turns.append(_joined(message, *held, content) if held else dict(message))
            held = []
        else:
            if role != "tool":
                _flush(turns, held)
                held = []
            turns.append(dict(message))
    _flush(turns, held)
    return turns


def _flush(turns: list[dict[str, Any]], held: Sequence[str]) -> None:
    """Add the ``held`` texts as the user's."""
    if not held:
        return
    if turns[-1]["role"] == "user":
        turns[-1] = _joined(turns[-1], turns[-1].get("content", ""), *held)
    else:
        turns.append(_joined({"role": "user"}, *held))


def _joined(message: Mapping[str, Any], *texts: str) -> dict[str, Any]:
    return {**message, "content": "\n\n".join(each for each in texts if each)}
