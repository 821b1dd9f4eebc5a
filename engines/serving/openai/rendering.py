"""Answers in the shape of OpenAI's API: whole ones, and the pieces of a stream, which are server-sent events.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from ...requests.results import RequestOutput, TokenLogprob
from ..choices import Choices
from ..problems import HttpRefusal
from ..rendering import Logprobs, Renderer, ReportedTokens
from ..usage import cached_tokens, speculation, total_acceptance
from .errors import error_body
from .options import ResponseOptions

DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """One event, its data JSON in one line."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def token_counts(prompt: int, written: int) -> dict[str, Any]:
    """The tokens of a prompt and of what was written, as OpenAI's API names them."""
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def usage(choices: Choices) -> dict[str, Any]:
    """Tokens of all choices, which have ended, and how speculation went."""
    written = sum(len(output.token_ids) for output in choices.outputs) if choices.generation.shows_answer else 0
    acceptance = total_acceptance(choices.outputs)
    return {
        **token_counts(choices.prompted, written),
        "prompt_tokens_details": {"cached_tokens": cached_tokens(choices.outputs)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": acceptance.accepted,
            "rejected_prediction_tokens": acceptance.drafted - acceptance.accepted,
        },
        "speculation": speculation(acceptance),
    }


class Answer(Renderer):
    """What all pieces of one response say: how it is named, and of which model it is.

    ``token_text`` says what a token is, for logprobs. Where the body wants it, every choice has its text once more, cut
    into ``[text, whether it was drafted]``.
    """

    prefix: ClassVar[str]  # of its id
    whole_name: ClassVar[str]
    piece_name: ClassVar[str]

    def __init__(self, model: str, token_text: Callable[[int], str], options: ResponseOptions) -> None:
        self.token_text, self.options = token_text, options
        self._written: Counter[int] = Counter()  # tokens of answers, by choice
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, answers: Sequence[ReportedTokens], choices: Choices) -> dict[str, Any]:
        """The response that was not streamed."""
        listed = [self._choice(each, self.text(each)) for each in answers]
        whole = {**self._head, "object": self.whole_name, "choices": listed, "usage": usage(choices)}
        if self.options.include_prompt_logprobs:
            self.add_prompts(whole, [self._of_prompt(output) for output in choices.outputs])
        return whole

    def pieces(self, tokens: ReportedTokens) -> Iterator[bytes]:
        """The events of a choice's next tokens."""
        return map(event, self.contents(tokens))

    def closing(self, choices: Choices) -> Iterator[bytes]:
        """What it all took, where the body wants that, and the end."""
        if self.options.includes_usage:
            yield event({**self._piece([]), "usage": usage(choices)})
        yield DONE

    def failure(self, refusal: HttpRefusal) -> Iterator[bytes]:
        """The error as an event, and the end."""
        yield event(error_body(refusal))
        yield DONE

    def contents(self, tokens: ReportedTokens) -> Iterator[dict[str, Any]]:
        """What a stream tells of a choice's next tokens: nothing while they are no whole character."""
        self._written[tokens.choice] += tokens.num_tokens
        if not tokens.is_empty:
            yield self._of_choice(tokens, self._choice(tokens, self.text_piece(tokens)))

    def _of_choice(self, tokens: ReportedTokens, choice: dict[str, Any]) -> dict[str, Any]:
        """One piece of a stream, with the usage of its choice so far where the body wants that."""
        piece = self._piece([choice])
        if self.options.includes_usage and self.options.running_usage:
            piece["usage"] = token_counts(len(tokens.prompt), self._written[tokens.choice])
        return piece

    def _piece(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.piece_name, "choices": choices}

    def _choice(self, tokens: ReportedTokens, content: dict[str, Any]) -> dict[str, Any]:
        logprobs = self.logprobs(tokens) if tokens.logprobs else None
        ended = {"finish_reason": finish(tokens.finish_reason), "stop_reason": tokens.stop_reason}
        choice = {"index": tokens.choice, **content, "logprobs": logprobs, **ended}
        return choice | ({"drafted": tokens.runs} if self.options.shows_drafted else {})

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
    def text(self, tokens: ReportedTokens) -> dict[str, Any]:
        """The text of a whole choice."""

    @abstractmethod
    def text_piece(self, tokens: ReportedTokens) -> dict[str, Any]:
        """A piece of the text of a choice."""

    @abstractmethod
    def logprobs(self, tokens: ReportedTokens) -> dict[str, Any]:
        """How likely a choice's next tokens were."""


class CompletionAnswer(Answer):
    """Texts that go on."""

    prefix, whole_name, piece_name = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, token_text: Callable[[int], str], options: ResponseOptions) -> None:
        super().__init__(model, token_text, options)
        self._offsets: Counter[int] = Counter()  # characters of tokens, by choice

    def text(self, tokens: ReportedTokens) -> dict[str, Any]:
        """The text alone."""
        return {"text": tokens.text}

    text_piece = text

    def add_prompts(self, whole: dict[str, Any], found: list[Any]) -> None:
        """In every choice."""
        for choice, each in zip(whole["choices"], found, strict=True):
            choice["prompt_logprobs"] = each

    def logprobs(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Lists side by side; offsets count from where the choice's text begins. The token is among the likely ones."""
        found: Logprobs = tokens.logprobs
        ids = [tokens.prompt[0] if each is None else each.token_id for each in found]
        texts, offsets = [self.token_text(token) for token in ids], []
        for text in texts:
            offsets.append(self._offsets[tokens.choice])
            self._offsets[tokens.choice] += len(text)
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
