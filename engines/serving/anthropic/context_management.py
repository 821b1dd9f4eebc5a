"""Edits that a request makes to its own conversation: which turns of the assistant keep their reasoning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from ..problems import HttpRefusal
from ..reading import parse_variant
from .bodies import ContextManagement, SpokenMessage

_EDIT = "clear_thinking_20251015"
_THOUGHTS = ("thinking", "redacted_thinking")


class ClearThinking(Struct, forbid_unknown_fields=True):
    """Keep the reasoning of the last turns only; by default, as in Anthropic's API, of one."""

    keep: Any = None


class ThinkingTurns(Struct, forbid_unknown_fields=True):
    """The number of turns that keep their reasoning."""

    value: int


class AllTurns(Struct, forbid_unknown_fields=True):
    """Every turn keeps its reasoning."""


_KEEPS: dict[str, type[Struct]] = {"thinking_turns": ThinkingTurns, "all": AllTurns}


def first_with_thoughts(edits: ContextManagement | None, messages: Sequence[SpokenMessage]) -> int:
    """Return the index of the first message that keeps its reasoning. Raises ``HttpRefusal`` for another edit.

    A turn is everything between two questions of the user. Calls and results do not end it, because a model needs the
    reasoning that led to a call when it reads the result.
    """
    kept = min(_turns_to_keep(edits), default=None)
    if kept is None:
        return 0
    begins = [at for at, each in enumerate(messages) if _is_question(each)]
    turns = [
        at
        for at, end in zip([0, *begins], [*begins, len(messages)], strict=True)
        if any(_has_thoughts(each) for each in messages[at:end])
    ]
    return turns[-kept] if len(turns) > kept else 0


def _turns_to_keep(edits: ContextManagement | None) -> Iterator[int]:
    """Yield the number of turns that each edit keeps, unless it keeps all."""
    for at, edit in enumerate((edits and edits.edits) or ()):
        path = f"context_management.edits[{at}]"
        keep = parse_variant(edit, {_EDIT: ClearThinking}, path).keep
        if keep is None:
            yield 1
        elif keep != "all":
            turns = parse_variant(keep, _KEEPS, f"{path}.keep")
            if isinstance(turns, ThinkingTurns):
                if turns.value < 1:
                    field = f"{path}.keep.value"
                    raise HttpRefusal(400, f"{field} must be 1 or more, not {turns.value}", param=field)
                yield turns.value


def _is_question(message: SpokenMessage) -> bool:
    return message.role == "user" and "tool_result" not in _types(message)


def _has_thoughts(message: SpokenMessage) -> bool:
    return message.role == "assistant" and any(each in _THOUGHTS for each in _types(message))


def _types(message: SpokenMessage) -> list[Any]:
    blocks = message.content if isinstance(message.content, list) else []
    return [each.get("type") for each in blocks if isinstance(each, dict)]
