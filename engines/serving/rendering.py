"""What answers report as they grow, whichever API tells it: text, thoughts, calls of tools, logprobs, the prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..requests.results import Delta, RequestOutput, TokenLogprob
from ..text.answer_styles import AnswerReader, Style, reader_of
from ..text.tool_calls import ToolCall
from .choices import Choices
from .generation import Conversation
from .problems import HttpRefusal

Logprobs = Sequence[TokenLogprob | None]
Runs = Sequence[tuple[str, bool]]  # of a text: its pieces, and whether each was drafted


@dataclass(frozen=True)
class ReportedTokens:
    """What is reported of a choice at once: of all of it, or of its next tokens.

    ``prompt`` are the ids of its prompt. An echoed prompt stands before the first text, and its logprobs before the
    first ones; its first token has None. ``num_tokens`` counts the answer's alone. ``finish_reason`` is that of a
    ``RequestOutput``, or "tool_calls".
    """

    choice: int
    prompt: Sequence[int]
    num_tokens: int
    text: str
    logprobs: Logprobs
    runs: Runs
    finish_reason: str | None
    stop_reason: int | str | None
    calls: Sequence[ToolCall] = ()
    thought: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell yet, such as while tokens are no whole character."""
        return not (self.text or self.finish_reason or self.logprobs or self.calls or self.thought)


class Reporter:
    """Reads the answers of one generation: what is said, what is thought, and what is called."""

    def __init__(self, choices: Choices, style: Style | None, decode: Callable[[Sequence[int]], str]) -> None:
        """``style`` is that of the model's chat answers, ``decode`` gives the text of token ids."""
        self._prompts, self._generation, self._style = choices.prompts, choices.generation, style
        self._echoes: dict[int, str] = {}  # texts of prompts by choice, until they are reported
        self._readers: dict[int, AnswerReader | None] = {}
        source = self._generation.source
        if self._generation.echoes and not isinstance(source, Conversation):
            given = [prompt for prompt in source for _ in range(self._generation.choices)]
            for index, (prompt, ids) in enumerate(zip(given, choices.prompts, strict=True)):
                self._echoes[index] = prompt if isinstance(prompt, str) else decode(ids)

    def report(self, index: int, given: RequestOutput | Delta, runs: Runs) -> ReportedTokens:
        """Return what is reported of a choice, with the prompt before it the first time."""
        prompt = self._prompts[index]
        if self._generation.shows_answer:
            told = ReportedTokens(
                index,
                prompt,
                len(given.token_ids),
                given.text,
                given.logprobs,
                runs,
                given.finish_reason,
                given.stop_reason,
            )
        else:
            told = ReportedTokens(index, prompt, 0, "", (), (), given.finish_reason and "length", None)
        if index in self._echoes:
            text, scored = self._echoes.pop(index), given.prompt_logprobs if given.logprobs else ()
            told = replace(
                told, text=text + told.text, logprobs=(*scored, *told.logprobs), runs=((text, False), *told.runs)
            )
        return self._read(told)

    def _read(self, told: ReportedTokens) -> ReportedTokens:
        """Tell calls and thoughts apart from the text, where the model's answers have them."""
        source = self._generation.source
        if not isinstance(source, Conversation):
            return told
        if told.choice not in self._readers:
            certain = bool(source.must_call)
            self._readers[told.choice] = reader_of(self._style, source.tools, source.most_calls, are_certain=certain)
        reader = self._readers[told.choice]
        if reader is None:
            return told
        text, calls, shown = "", list[ToolCall](), list[tuple[str, bool]]()
        pieces = told.runs if self._style == "channels" else ((told.text, False),)
        for at, (piece, drafted) in enumerate(pieces or (("", False),)):
            is_last = told.finish_reason is not None and at + 1 >= len(pieces)
            said, found = reader.push(piece, is_last=is_last)
            text, calls, shown = text + said, calls + found, [*shown, (said, drafted)]
        reason = "tool_calls" if reader.count and told.finish_reason == "stop" else told.finish_reason
        if self._style == "channels":  # what stands between is not shown
            told = replace(told, runs=[each for each in shown if each[0]])
        return replace(told, text=text, calls=calls, thought=reader.take_thought(), finish_reason=reason)


class Renderer(ABC):
    """How one response of an API is written, whole or as a stream of pieces, each of them bytes on the wire."""

    stream_type: ClassVar[str] = "text/event-stream"  # the media type of a stream

    @abstractmethod
    def whole(self, answers: Sequence[ReportedTokens], choices: Choices) -> Any:
        """Return the content of the JSON response that was not streamed; all ``choices`` have ended."""

    @abstractmethod
    def pieces(self, tokens: ReportedTokens) -> Iterator[bytes]:
        """Return what a stream tells of a choice's next tokens."""

    @abstractmethod
    def closing(self, choices: Choices) -> Iterator[bytes]:
        """Return the end of a stream all of whose ``choices`` have ended."""

    @abstractmethod
    def failure(self, refusal: HttpRefusal) -> Iterator[bytes]:
        """Return the end of a stream that failed on the way; its status was sent long ago."""
