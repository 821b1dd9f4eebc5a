"""Answers as OpenAI's API has them: whole ones, and the pieces of a stream, which are server-sent events.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...requests.results import Acceptance, Delta, RequestOutput, TokenLogprob

DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """One event, its data JSON in one line."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


@dataclass(frozen=True)
class Answer:
    """What all pieces of one response say: how it is named, and of which model it is.

    ``is_chat`` decides the form: messages, or texts. ``token_text`` says what a token is, for logprobs.
    ``shows_drafted`` adds to every choice its text once more, cut into ``[text, whether it was drafted]``.
    """

    is_chat: bool
    model: str
    token_text: Callable[[int], str]
    shows_drafted: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    token: str = field(default_factory=lambda: secrets.token_hex(12))

    def whole(
        self, outputs: Iterable[RequestOutput], runs: Iterable[list[tuple[str, bool]]], prompted: int
    ) -> dict[str, Any]:
        """The response that was not streamed; ``outputs`` are its choices, ``prompted`` the tokens of its prompts."""
        listed = list(outputs)
        choices = []
        for index, (output, each) in enumerate(zip(listed, runs, strict=True)):
            choice = self._choice(index, output.text, finish(output.finish_reason), output.logprobs, is_whole=True)
            if self.shows_drafted:
                choice["drafted"] = each
            choices.append(choice)
        name = "chat.completion" if self.is_chat else "text_completion"
        return {**self._head(name), "choices": choices, "usage": usage(listed, prompted)}

    def opening(self, index: int) -> dict[str, Any]:
        """The first piece of a choice of a chat: who speaks."""
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return {**self._piece(), "choices": [choice]}

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """A further piece of a choice."""
        choice = self._choice(index, delta.text, finish(delta.finish_reason), delta.logprobs, is_whole=False)
        if self.shows_drafted:
            choice["drafted"] = delta.runs
        return {**self._piece(), "choices": [choice]}

    def closing(self, outputs: list[RequestOutput], prompted: int) -> dict[str, Any]:
        """The piece after the last: what it all took."""
        return {**self._piece(), "choices": [], "usage": usage(outputs, prompted)}

    def _piece(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk" if self.is_chat else "text_completion")

    def _head(self, name: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {"id": f"{prefix}-{self.token}", "object": name, "created": self.created, "model": self.model}

    def _choice(
        self, index: int, text: str, reason: str | None, logprobs: Sequence[TokenLogprob], *, is_whole: bool
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.is_chat and is_whole:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        elif self.is_chat:
            content = {"delta": {"content": text} if text else {}}
        told = self._logprobs(logprobs) if logprobs else None
        return {"index": index, **content, "logprobs": told, "finish_reason": reason}

    def _logprobs(self, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Those of some tokens, in the form of a chat or of a completion, which have them differently."""
        if not self.is_chat:
            texts = [self.token_text(each.token_id) for each in found]
            tops = [{self.token_text(token): value for token, value in each.top} for each in found]
            offsets = [sum(len(text) for text in texts[:at]) for at in range(len(texts))]
            values = [each.logprob for each in found]
            return {"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
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


def usage(outputs: list[RequestOutput], prompted: int) -> dict[str, Any]:
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
