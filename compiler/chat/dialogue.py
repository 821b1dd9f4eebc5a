"""A dialogue: the messages so far, trimmed to the engine's context."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...engines import Engine

Message = dict[str, Any]


class Dialogue:
    """The turns of a user and the model, after a ``system`` message that is always kept.

    A turn is a question and its answer; the last one may be unanswered.
    """

    def __init__(self, engine: Engine, system: str | None, max_tokens: int) -> None:
        self._engine, self._max_tokens = engine, max_tokens
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """All messages for the model."""
        return [*self._system, *self._turns]

    def check(self) -> None:
        """Render a test question, so that an engine without a chat template fails before the user types."""
        self._engine.chat_prompt([*self._system, {"role": "user", "content": "?"}])

    def ask(self, text: str) -> int:
        """Add a question, drop the oldest turns until an answer fits, and return the number of dropped turns.

        An answer needs ``max_tokens``, or a quarter of the context if that is less. The engine rejects a question that
        is too long by itself.
        """
        self._turns.append({"role": "user", "content": text})
        context = self._engine.max_seq_len
        room, dropped = min(self._max_tokens, context // 4), 0
        while len(self._turns) > 1 and self._length() + room > context:
            del self._turns[:2]
            dropped += 1
        return dropped

    def _length(self) -> float:
        """Return the number of tokens of all messages; infinite if they are certainly too many."""
        from ...engines import PromptTooLong

        try:
            return len(self._engine.chat_prompt(self.messages)[1])
        except PromptTooLong:
            return inf

    def answer(self, text: str) -> None:
        """Add the answer to the last question; if it is empty, remove the question instead."""
        if visible := self._engine.spoken(text):
            self._turns.append({"role": "assistant", "content": visible})
        else:
            self.remove_question()

    def remove_question(self) -> None:
        """Remove an unanswered question."""
        if self._turns and self._turns[-1]["role"] == "user":
            self._turns.pop()

    def reset(self) -> None:
        """Remove all turns."""
        self._turns.clear()
