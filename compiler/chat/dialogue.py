"""A dialogue: what was said so far, and what of it still fits into the engine's context."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...engines import Engine

Message = dict[str, Any]


class Dialogue:
    """The turns of a user and the model, after a ``system`` message that always stays.

    A turn is a question with its answer; the last may have none yet.
    """

    def __init__(self, engine: Engine, system: str | None, max_tokens: int) -> None:
        self._engine, self._max_tokens = engine, max_tokens
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """All that the model is given."""
        return [*self._system, *self._turns]

    def check(self) -> None:
        """Render a first question, so that an engine that cannot chat says so before anybody has typed one."""
        self._engine.chat_prompt([*self._system, {"role": "user", "content": "?"}])

    def ask(self, text: str) -> int:
        """Add a question, and leave out the oldest turns while there is no room for an answer; says how many.

        Room is ``max_tokens``, or a quarter of the context where that is less. A question that is too long by itself is
        the engine's to refuse.
        """
        self._turns.append({"role": "user", "content": text})
        context = self._engine.max_seq_len
        room, dropped = min(self._max_tokens, context // 4), 0
        while len(self._turns) > 1 and self._length() + room > context:
            del self._turns[:2]
            dropped += 1
        return dropped

    def _length(self) -> float:
        """The tokens of all that the model is given; infinite where they are certainly too many."""
        from ...engines import PromptTooLong

        try:
            return len(self._engine.chat_prompt(self.messages)[1])
        except PromptTooLong:
            return inf

    def answer(self, text: str) -> None:
        """Add the answer to the last question; without a word the question is taken back as well."""
        if said := self._engine.spoken(text):
            self._turns.append({"role": "assistant", "content": said})
        else:
            self.take_back()

    def take_back(self) -> None:
        """Forget a question that was not answered."""
        if self._turns and self._turns[-1]["role"] == "user":
            self._turns.pop()

    def reset(self) -> None:
        """Forget every turn."""
        self._turns.clear()
