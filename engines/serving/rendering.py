"""Reporting of answers as they grow, shared by all APIs: text, reasoning, tool calls, logprobs and the prompt.

Streams are server-sent events in most APIs: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec

from ..answer_styles import AnswerForm, AnswerReader, AnswerStyle, Thought, ToolCall
from ..requests.results import Delta, RequestOutput, TokenLogprob
from .choices import Choices
from .generation import Conversation
from .problems import HttpRefusal

Logprobs = Sequence[TokenLogprob | None]
Runs = Sequence[tuple[str, bool]]  # pieces of a text, each with whether it was drafted


@dataclass(frozen=True)
class ReportedTokens:
    """The tokens of a choice that are reported at once: all of them, or the next ones of a stream.

    ``prompt`` are the token ids of its prompt. An echoed prompt, whose text is ``echo``, precedes the first text, and
    its logprobs precede the first ones; its first token has None. ``token_ids`` are only the answer's.
    ``finish_reason`` is that of a ``RequestOutput``, or "tool_calls". ``offset`` is the number of visible characters
    reported before.
    """

    choice: int
    prompt: Sequence[int]
    token_ids: Sequence[int]
    text: str
    logprobs: Logprobs
    runs: Runs
    finish_reason: str | None
    stop_reason: int | str | None
    calls: Sequence[ToolCall] = ()
    thoughts: Sequence[Thought] = ()
    offset: int = 0
    echo: str = ""

    @property
    def thought(self) -> str:
        """The reasoning, as one text."""
        return "".join(each.text for each in self.thoughts)

    def parts(self) -> Iterator[str | Thought | ToolCall]:
        """Yield text, reasoning and calls in the order of the answer."""
        at = 0
        marks: list[Thought | ToolCall] = [*self.thoughts, *self.calls]
        for mark in sorted(marks, key=lambda each: each.place):
            end = min(max(mark.after - self.offset, at), len(self.text))
            if end > at:
                yield self.text[at:end]
            yield mark
            at = end
        if at < len(self.text):
            yield self.text[at:]

    @property
    def is_empty(self) -> bool:
        """Return True if there is nothing to report yet, for example because a character is incomplete."""
        return not (self.text or self.finish_reason or self.logprobs or self.calls or self.thought)


class Reporter:
    """Splits the answers of one generation into text, reasoning and tool calls."""

    def __init__(self, choices: Choices, style: AnswerStyle, decode: Callable[[Sequence[int]], str]) -> None:
        """``style`` is the model's chat answer style; ``decode`` returns the text of token ids."""
        self._prompts, self._generation, self._style = choices.prompts, choices.generation, style
        self._in_thought = choices.in_thought
        self._echoes: dict[int, str] = {}  # prompt text by choice, until it is reported
        self._readers: dict[int, AnswerReader | None] = {}
        self._shown: Counter[int] = Counter()  # visible characters reported so far, by choice
        source = self._generation.source
        if self._generation.echoes and not isinstance(source, Conversation):
            is_whole = self._generation.params.truncate_prompt_tokens is None
            prompts = [prompt for prompt in source for _ in range(self._generation.choices)]
            for index, (prompt, ids) in enumerate(zip(prompts, choices.prompts, strict=True)):
                self._echoes[index] = prompt if isinstance(prompt, str) and is_whole else decode(ids)

    def report(self, index: int, output: RequestOutput | Delta, runs: Runs) -> ReportedTokens:
        """Return what to report for a choice. The first report includes the echoed prompt."""
        prompt = self._prompts[index]
        if self._generation.shows_answer:
            reported = ReportedTokens(
                index,
                prompt,
                output.token_ids,
                output.text,
                output.logprobs,
                runs,
                output.finish_reason,
                output.stop_reason,
            )
        else:
            reported = ReportedTokens(index, prompt, (), "", (), (), output.finish_reason and "length", None)
        if index in self._echoes:
            text, scored = self._echoes.pop(index), output.prompt_logprobs if output.logprobs else ()
            reported = replace(
                reported,
                text=text + reported.text,
                logprobs=(*scored, *reported.logprobs),
                runs=((text, False), *reported.runs),
                echo=text,
            )
        return self._read(reported)

    def _read(self, reported: ReportedTokens) -> ReportedTokens:
        """Separate tool calls and reasoning from the text, if the model's style has them."""
        source = self._generation.source
        if not isinstance(source, Conversation):
            return reported
        if reported.choice not in self._readers:
            self._readers[reported.choice] = self._style.reader_of(
                source.tools,
                source.max_calls,
                form=self._generation.form,
                in_thought=self._in_thought[reported.choice],
            )
        reader = self._readers[reported.choice]
        if reader is None:
            return reported
        text, calls, shown = "", list[ToolCall](), list[tuple[str, bool]]()
        for at, (piece, drafted) in enumerate(reported.runs or (("", False),)):
            is_last = reported.finish_reason is not None and at + 1 >= len(reported.runs)
            visible, found = reader.push(piece, is_last=is_last)
            visible = (
                "" if self._generation.form is AnswerForm.CALLS else visible
            )  # there is no text, and a truncated call is omitted
            text, calls, shown = text + visible, calls + found, [*shown, (visible, drafted)]
        reason = "tool_calls" if reader.count and reported.finish_reason == "stop" else reported.finish_reason
        runs = [each for each in shown if each[0]]  # calls, and text outside of channels, are not shown
        offset, self._shown[reported.choice] = self._shown[reported.choice], self._shown[reported.choice] + len(text)
        thoughts = reader.take_thoughts()
        return replace(
            reported, text=text, runs=runs, calls=calls, thoughts=thoughts, finish_reason=reason, offset=offset
        )


def event(content: Any, name: str | None = None) -> bytes:
    """Return one server-sent event with its data as one line of JSON, and its name if the API uses names."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(content) + b"\n\n"


class Renderer(ABC):
    """Writes one response of an API, whole or as a stream of pieces in bytes."""

    stream_type: ClassVar[str] = "text/event-stream"  # media type of a stream
    patience: ClassVar[float | None] = None  # seconds without a piece, after which a stream has ``waiting``

    def opening(self, choices: Choices) -> Iterator[bytes]:
        """Return the beginning of a stream. All ``choices`` have been submitted."""
        del choices
        return iter(())

    @abstractmethod
    def body(self, answers: Sequence[ReportedTokens], choices: Choices) -> Any:
        """Return the content of a non-streamed JSON response. All ``choices`` have finished."""

    @abstractmethod
    def pieces(self, tokens: ReportedTokens) -> Iterator[bytes]:
        """Return the stream pieces for a choice's next tokens."""

    def waiting(self) -> Iterator[bytes]:
        """Return stream pieces that say that the answer goes on."""
        return iter(())

    @abstractmethod
    def closing(self, choices: Choices) -> Iterator[bytes]:
        """Return the end of a stream. All ``choices`` have finished."""

    @abstractmethod
    def failure(self, refusal: HttpRefusal) -> Iterator[bytes]:
        """Return the end of a stream that failed after its status was sent."""
