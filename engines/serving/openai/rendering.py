"""Answers as OpenAI's API has them: whole ones, and the pieces of a stream, which are server-sent events.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from ...requests.results import Acceptance, Delta, RequestOutput, TokenLogprob

Runs = Sequence[tuple[str, bool]]  # of a text: its pieces, and whether each was drafted
DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """One event, its data JSON in one line."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


class Answer(ABC):
    """What all pieces of one response say: how it is named, and of which model it is.

    ``token_text`` says what a token is, for logprobs. ``shows_drafted`` adds to every choice its text once more, cut
    into ``[text, whether it was drafted]``.
    """

    prefix: ClassVar[str]  # of its id
    whole_name: ClassVar[str]
    piece_name: ClassVar[str]

    def __init__(self, model: str, token_text: Callable[[int], str], *, shows_drafted: bool) -> None:
        self.token_text, self._shows_drafted = token_text, shows_drafted
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, outputs: Sequence[RequestOutput], runs: Sequence[Runs], prompted: int) -> dict[str, Any]:
        """The response that was not streamed; ``outputs`` are its choices, ``prompted`` the tokens of its prompts."""
        choices = [
            self._choice(index, self.text(output.text), output, each)
            for index, (output, each) in enumerate(zip(outputs, runs, strict=True))
        ]
        return {**self._head, "object": self.whole_name, "choices": choices, "usage": usage(outputs, prompted)}

    def pieces(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """What a stream tells of a choice's next tokens: nothing while they are no whole character."""
        if delta.text or delta.finish_reason or delta.logprobs:
            yield self.piece([self._choice(index, self.text_piece(delta.text), delta, delta.runs)])

    def closing(self, outputs: Sequence[RequestOutput], prompted: int) -> dict[str, Any]:
        """The piece after the last: what it all took."""
        return {**self.piece([]), "usage": usage(outputs, prompted)}

    def piece(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """One piece of a stream."""
        return {**self._head, "object": self.piece_name, "choices": choices}

    def _choice(self, index: int, content: dict[str, Any], told: RequestOutput | Delta, runs: Runs) -> dict[str, Any]:
        logprobs = self.logprobs(index, told.logprobs) if told.logprobs else None
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish(told.finish_reason)}
        return choice | ({"drafted": runs} if self._shows_drafted else {})

    @abstractmethod
    def text(self, text: str) -> dict[str, Any]:
        """The text of a whole choice."""

    @abstractmethod
    def text_piece(self, text: str) -> dict[str, Any]:
        """A piece of the text of a choice."""

    @abstractmethod
    def logprobs(self, index: int, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        """How likely a choice's next tokens were."""


class CompletionAnswer(Answer):
    """Texts that go on."""

    prefix, whole_name, piece_name = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, token_text: Callable[[int], str], *, shows_drafted: bool) -> None:
        super().__init__(model, token_text, shows_drafted=shows_drafted)
        self._told: Counter[int] = Counter()  # characters of tokens, by choice

    def text(self, text: str) -> dict[str, Any]:
        """The text alone."""
        return {"text": text}

    text_piece = text

    def logprobs(self, index: int, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Lists side by side; offsets count from where the answer begins."""
        texts, offsets = [self.token_text(each.token_id) for each in found], []
        for text in texts:
            offsets.append(self._told[index])
            self._told[index] += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [each.logprob for each in found],
            "top_logprobs": [{self.token_text(token): value for token, value in each.top} for each in found],
            "text_offset": offsets,
        }


class ChatAnswer(Answer):
    """Messages of the assistant's."""

    prefix, whole_name, piece_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, token_text: Callable[[int], str], *, shows_drafted: bool) -> None:
        super().__init__(model, token_text, shows_drafted=shows_drafted)
        self._opened: set[int] = set()

    def pieces(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """Say who speaks first, then the rest."""
        if index not in self._opened:
            self._opened.add(index)
            content = {"delta": {"role": "assistant", "content": ""}}
            yield self.piece([{"index": index, **content, "logprobs": None, "finish_reason": None}])
        yield from super().pieces(index, delta)

    def text(self, text: str) -> dict[str, Any]:
        """A message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def text_piece(self, text: str) -> dict[str, Any]:
        """What is added to the message."""
        return {"delta": {"content": text} if text else {}}

    def logprobs(self, index: int, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        """An object for each token."""
        del index
        content = [
            {**self._token(each.token_id, each.logprob), "top_logprobs": [self._token(*pair) for pair in each.top]}
            for each in found
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def finish(reason: str | None) -> str | None:
    """Why a choice ended, in OpenAI's words, which have none for one that was cut off because the server ends."""
    return "length" if reason == "abort" else reason


def usage(outputs: Sequence[RequestOutput], prompted: int) -> dict[str, Any]:
    """Tokens of all choices, after ``prompted`` tokens of prompts, and how speculation went."""
    written = sum(len(output.token_ids) for output in outputs)
    acceptance = Acceptance()
    for output in outputs:
        acceptance.add(output.acceptance)
    return {
        "prompt_tokens": prompted,
        "completion_tokens": written,
        "total_tokens": prompted + written,
        "completion_tokens_details": {
            "accepted_prediction_tokens": acceptance.accepted,
            "rejected_prediction_tokens": acceptance.drafted - acceptance.accepted,
        },
        "speculation": speculation(acceptance),
    }


def speculation(acceptance: Acceptance) -> dict[str, Any]:
    """Rounds, drafts and how many of them were accepted, by their position in the round."""
    return {
        "rounds": acceptance.rounds,
        "rounds_without_drafts": acceptance.undrafted,
        "drafted_tokens": acceptance.drafted,
        "accepted_tokens": acceptance.accepted,
        "accepted_per_position": per_position(acceptance),
        "acceptance_length": round(acceptance.acceptance_length, 4),
    }


def per_position(acceptance: Acceptance) -> list[int]:
    """How many rounds accepted their first draft, their second, and so on."""
    most = max(acceptance.histogram, default=0)
    return [sum(n for a, n in acceptance.histogram.items() if a > position) for position in range(most)]
