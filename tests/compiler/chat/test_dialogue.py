"""The part of a dialogue that fits in the engine's context."""

from __future__ import annotations

from typing import Any

from peagle.compiler.chat.dialogue import Dialogue
from peagle.engines import PromptTooLong


class _Engine:
    """An engine whose conversations have a token for each character, and that counts no more of them than 60."""

    max_seq_len = 40

    def chat_prompt(self, messages: list[dict[str, Any]]) -> tuple[str, list[int]]:
        text = "".join(message["content"] for message in messages)
        if len(text) > 60:
            raise PromptTooLong("the conversation", len(text), self.max_seq_len, unit="characters")
        return text, [0] * len(text)

    def spoken(self, answer: str) -> str:
        return answer


def test_old_turns_are_dropped_even_if_too_long_to_count() -> None:
    dialogue = Dialogue(_Engine(), None, 10)  # type: ignore[arg-type]
    for letter in "abc":
        dialogue._turns += [{"role": "user", "content": letter * 15}, {"role": "assistant", "content": letter * 15}]
    assert dialogue.ask("?") == 3
    assert [message["content"] for message in dialogue.messages] == ["?"]


def test_too_long_question_is_passed_to_the_engine() -> None:
    dialogue = Dialogue(_Engine(), None, 10)  # type: ignore[arg-type]
    assert dialogue.ask("?" * 99) == 0
