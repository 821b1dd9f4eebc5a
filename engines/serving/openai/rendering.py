"""Answers as OpenAI's API has them: whole ones, and the pieces of a stream, which are server-sent events.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec

from ...requests.results import Delta, RequestOutput, TokenLogprob
from ...text.tool_calls import ToolCall
from .options import Asked
from .usage import counts, usage

Logprobs = Sequence[TokenLogprob | None]
Runs = Sequence[tuple[str, bool]]  # of a text: its pieces, and whether each was drafted
DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """One event, its data JSON in one line."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


@dataclass(frozen=True)
class Told:
    """What is said of a choice at once: of all of it, or of its next tokens."""

    text: str
    logprobs: Logprobs
    runs: Runs
    finish_reason: str | None
    stop_reason: int | str | None
    calls: Sequence[ToolCall] = ()
    thought: str = ""


@dataclass(frozen=True)
class Echo:
    """A prompt that stands before its answer: its text, and the id of its first token, which has no logprob."""

    text: str
    first: int


class Answer(ABC):
    """What all pieces of one response say: how it is named, and of which model it is.

    ``token_text`` says what a token is, for logprobs. Where it was asked for, every choice has its text once more, cut
    into ``[text, whether it was drafted]``. ``echoes`` are the prompts by choice that are told before their answers,
    ``prompt_lengths`` the tokens of the prompts by choice, for a stream that counts as it goes.
    """

    prefix: ClassVar[str]  # of its id
    whole_name: ClassVar[str]
    piece_name: ClassVar[str]

    def __init__(self, model: str, token_text: Callable[[int], str], asked: Asked) -> None:
        self.token_text, self.asked = token_text, asked
        self.echoes: Sequence[Echo] = ()
        self.prompt_lengths: Sequence[int] = ()
        self._begun: set[int] = set()
        self._written: Counter[int] = Counter()  # tokens of answers, by choice
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, outputs: Sequence[RequestOutput], runs: Sequence[Runs], prompted: int) -> dict[str, Any]:
        """The response that was not streamed; ``outputs`` are its choices, ``prompted`` the tokens of its prompts."""
        choices = []
        for index, (output, each) in enumerate(zip(outputs, runs, strict=True)):
            told = self._told(index, output, each)
            choices.append(self._choice(index, self.text(told), told))
        whole = {**self._head, "object": self.whole_name, "choices": choices, "usage": self._usage(outputs, prompted)}
        if self.asked.tells_prompt:
            self.add_prompts(whole, [self._of_prompt(output) for output in outputs])
        return whole

    def pieces(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """What a stream tells of a choice's next tokens: nothing while they are no whole character."""
        self._written[index] += len(delta.token_ids) if self.asked.shows_answer else 0
        told = self._told(index, delta, delta.runs)
        if told.text or told.finish_reason or told.logprobs or told.calls or told.thought:
            yield self.piece([self._choice(index, self.text_piece(told), told)])

    def closing(self, outputs: Sequence[RequestOutput], prompted: int) -> dict[str, Any]:
        """The piece after the last: what it all took."""
        return {**self.piece([]), "usage": self._usage(outputs, prompted)}

    def piece(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """One piece of a stream, with the usage of its choice so far where that was asked for."""
        piece = {**self._head, "object": self.piece_name, "choices": choices}
        if choices and self.asked.includes_usage and self.asked.running_usage:
            index = choices[0]["index"]
            piece["usage"] = counts(self.prompt_lengths[index], self._written[index])
        return piece

    def _told(self, index: int, given: RequestOutput | Delta, runs: Runs) -> Told:
        """What is said of ``given``, the prompt before it the first time."""
        told = Told(given.text, given.logprobs, runs, finish(given.finish_reason), given.stop_reason)
        if not self.asked.shows_answer:
            told = Told("", (), (), given.finish_reason and "length", None)
        if not self.echoes or index in self._begun:
            return told
        self._begun.add(index)
        text, scored = self.echoes[index].text, given.prompt_logprobs if given.logprobs else ()
        return replace(
            told, text=text + told.text, logprobs=(*scored, *told.logprobs), runs=((text, False), *told.runs)
        )

    def _choice(self, index: int, content: dict[str, Any], told: Told) -> dict[str, Any]:
        logprobs = self.logprobs(index, told.logprobs) if told.logprobs else None
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": told.finish_reason}
        choice |= {"stop_reason": told.stop_reason}
        return choice | ({"drafted": told.runs} if self.asked.shows_drafted else {})

    def _usage(self, outputs: Sequence[RequestOutput], prompted: int) -> dict[str, Any]:
        return usage(outputs, prompted, shows_answer=self.asked.shows_answer)

    def _of_prompt(self, output: RequestOutput) -> list[dict[str, Any] | None]:
        """The logprobs of a prompt's tokens as vLLM has them: by id, the most likely ones and the token itself."""
        told: list[dict[str, Any] | None] = []
        for each in output.prompt_logprobs:
            if each is None:
                told.append(None)
                continue
            ranked = {token: (rank, value) for rank, (token, value) in enumerate(each.top, 1)}
            ranked[each.token_id] = each.rank, each.logprob
            told.append(
                {
                    str(token): {"logprob": value, "rank": rank, "decoded_token": self.token_text(token)}
                    for token, (rank, value) in ranked.items()
                }
            )
        return told

    @abstractmethod
    def add_prompts(self, whole: dict[str, Any], found: list[Any]) -> None:
        """Put the logprobs of the prompts of all choices into a response."""

    @abstractmethod
    def text(self, told: Told) -> dict[str, Any]:
        """The text of a whole choice."""

    @abstractmethod
    def text_piece(self, told: Told) -> dict[str, Any]:
        """A piece of the text of a choice."""

    @abstractmethod
    def logprobs(self, index: int, found: Logprobs) -> dict[str, Any]:
        """How likely a choice's next tokens were."""


class CompletionAnswer(Answer):
    """Texts that go on."""

    prefix, whole_name, piece_name = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, token_text: Callable[[int], str], asked: Asked) -> None:
        super().__init__(model, token_text, asked)
        self._offsets: Counter[int] = Counter()  # characters of tokens, by choice

    def text(self, told: Told) -> dict[str, Any]:
        """The text alone."""
        return {"text": told.text}

    text_piece = text

    def add_prompts(self, whole: dict[str, Any], found: list[Any]) -> None:
        """In every choice."""
        for choice, each in zip(whole["choices"], found, strict=True):
            choice["prompt_logprobs"] = each

    def logprobs(self, index: int, found: Logprobs) -> dict[str, Any]:
        """Lists side by side; offsets count from where the choice's text begins. The token is among the likely ones."""
        ids = [self.echoes[index].first if each is None else each.token_id for each in found]
        texts, offsets = [self.token_text(token) for token in ids], []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [each and each.logprob for each in found],
            "top_logprobs": [each and self._likely(each) for each in found],
            "text_offset": offsets,
        }

    def _likely(self, found: TokenLogprob) -> dict[str, float]:
        """The most likely tokens by their texts; of several ids with one text the most likely."""
        likely: dict[str, float] = {}
        for token, value in (*found.top, (found.token_id, found.logprob)):
            likely.setdefault(self.token_text(token), value)
        return likely


def finish(reason: str | None) -> str | None:
    """Why a choice ended, in OpenAI's words, which have none for one that was cut off because the server ends."""
    return "length" if reason == "abort" else reason
