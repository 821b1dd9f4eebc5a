"""Interactive chat at a terminal: questions, commands, streamed answers and Ctrl-C."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Literal

from ...engines.draft_methods import PLAIN
from ...plugins.errors import UsageError
from ..console import interrupts
from ..console.printing import note
from ..console.result_record import lossy
from .answer_view import AnswerView
from .dialogue import Dialogue
from .keyboard import Keyboard

if TYPE_CHECKING:
    from ...engines import Engine, RequestOutput, SamplingParams, Stream

LEFT_BY_INTERRUPT = 130
_HELP = '''/reset  clear the conversation, except for the system message
/exit   leave the chat (or press Ctrl-D)
/help   show this help
"""     begin and end a multi-line question
Ctrl-C  stop an answer and keep its text so far; at the prompt, leave the chat'''


class TerminalChat:
    """A chat that lasts until the user leaves. ``num_speculative_tokens`` overrides the engine's."""

    def __init__(
        self,
        engine: Engine,
        dialogue: Dialogue,
        params: SamplingParams,
        num_speculative_tokens: int | Literal["auto"] | None,
        draft: str | None,
        *,
        colours: bool,
    ) -> None:
        self._engine, self._dialogue, self._params, self._k = engine, dialogue, params, num_speculative_tokens
        self._draft = draft
        self._colours, self._moves = colours, os.environ.get("TERM", "dumb") != "dumb"
        k = engine.num_speculative_tokens if num_speculative_tokens in (None, "auto") else num_speculative_tokens
        self._drafts, self._keyboard = bool(k) and draft != PLAIN.name, Keyboard()
        self._stream: Stream | None = None
        self._is_reading = self._had_typed = self._is_ending = False

    def talk(self) -> int:
        """Run the chat and return its exit code: 0, or 130 if the user left with Ctrl-C."""
        self._greet()
        with interrupts.override_handler(self._interrupted):
            while True:
                try:
                    question = self._question()
                    if question is None:
                        return 0
                    self._react(question)
                except UsageError as error:
                    note(f"error: {error}")
                except KeyboardInterrupt:
                    print()
                    if not self._had_typed:
                        return LEFT_BY_INTERRUPT
                    self._had_typed = False  # Ctrl-C discarded the line

    def _question(self) -> str | None:
        """Return the next question or command; None when the user leaves."""
        self._is_reading = True
        try:
            question = self._keyboard.read()
        finally:
            self._is_reading = False
        if question is None:
            print()
        return None if question == "/exit" else question

    def _greet(self) -> None:
        view = self._view()
        print(
            view.dimmed(
                f"{self._engine.folder}, {self._engine.max_seq_len:,} tokens of context; /help for help, Ctrl-D to exit"
            )
        )
        if self._colours and self._drafts:
            print(f"\x1b[32mgreen\x1b[0m {view.dimmed('text comes from accepted drafts')}")

    def _react(self, question: str) -> None:
        if question == "/help":
            print(_HELP)
        elif question == "/reset":
            self._dialogue.reset()
            print("the conversation was cleared")
        elif question.startswith("/") and question[1:].isalpha():
            note(f"unknown command {question}; /help lists the commands")
        elif question:
            self._answer(question)

    def _answer(self, question: str) -> None:
        """Answer a question; after an error the dialogue is unchanged."""
        view = self._view()
        try:
            dropped = self._dialogue.ask(question)
            if dropped:
                turns = "turn was" if dropped == 1 else "turns were"
                print(view.dimmed(f"[the context is full: the oldest {dropped} {turns} dropped; /reset starts over]"))
            self._stream = self._engine.stream_chat(
                self._dialogue.messages, self._params, num_speculative_tokens=self._k, draft=self._draft
            )
            for delta in self._stream:
                view.show(delta)
            result = self._stream.result
        except BaseException as error:
            self._dialogue.remove_question()
            if isinstance(error, KeyboardInterrupt) and not self._is_ending:  # before the stream existed
                view.end()
                return
            raise
        finally:
            self._stream, self._is_ending = None, False
        self._dialogue.answer(result.text)
        view.end()
        note = lossy(result.acceptance)
        print(view.dimmed(f"[{view.count}, {_speed(result)}{self._cut(result)}{note and '; ' + note}]"))

    def _cut(self, result: RequestOutput) -> str:
        """Return the reason why an answer is incomplete; empty if it is complete."""
        if result.finish_reason == "abort":
            return "; interrupted" if result.text else "; interrupted: the question was removed"
        if result.finish_reason == "stop":
            return ""
        at_most = self._params.max_tokens
        return f"; cut at --max-tokens {at_most}" if len(result.token_ids) >= at_most else "; cut: the context is full"

    def _view(self) -> AnswerView:
        columns = shutil.get_terminal_size().columns
        return AnswerView(columns, colours=self._colours, moves=self._moves, drafts=self._drafts)

    def _interrupted(self) -> None:
        """Handle Ctrl-C: stop the answer. A second one, or one at the prompt, raises as usual."""
        if self._stream is not None and not self._is_ending:
            self._is_ending = True
            self._stream.abort()
            return
        self._had_typed = self._is_reading and self._keyboard.has_typed()
        raise KeyboardInterrupt


def _speed(result: RequestOutput) -> str:
    return f"{max(len(result.token_ids) - 1, 0) / max(result.decode_seconds, 1e-9):.1f} tokens/s"
