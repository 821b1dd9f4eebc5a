"""Responses in OpenAI's format, whole or streamed as server-sent events."""

from __future__ import annotations

import codecs
import secrets
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from ...requests.results import RequestOutput, TokenLogprob
from ..choices import Choices
from ..openai_error import error_body
from ..problems import HttpRefusal
from ..rendering import Logprobs, Renderer, ReportedTokens, event
from ..usage import speculation, total_acceptance
from .options import ResponseOptions

DONE = b"data: [DONE]\n\n"
WAITING = b": waiting\n\n"  # a comment, which clients skip; an empty one stops some of them


def token_counts(prompt: int, written: int) -> dict[str, Any]:
    """Return prompt and completion token counts under OpenAI's names."""
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def usage(choices: Choices) -> dict[str, Any]:
    """Return token counts of all choices, which must have finished, and speculation statistics.

    The statistics also count drafts that the target accepted behind the end of a text, which are no completion tokens.
    """
    shown = choices.outputs if choices.generation.shows_answer else ()
    acceptance = total_acceptance(choices.outputs)
    return {
        **token_counts(choices.prompted, sum(len(output.token_ids) for output in shown)),
        "prompt_tokens_details": {"cached_tokens": choices.cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(sum(output.drafted) for output in shown),
            "rejected_prediction_tokens": acceptance.drafted - acceptance.accepted,
        },
        "speculation": speculation(acceptance),
    }


class Answer(Renderer):
    """Base class of OpenAI responses, with the fields that all pieces of one response share.

    ``token_text`` returns the text of a token, for logprobs. With ``return_drafted``, every choice also has its text as
    a list of ``[text, whether it was drafted]``.
    """

    patience = 15.0
    prefix: ClassVar[str]  # of the response id
    whole_name: ClassVar[str]
    piece_name: ClassVar[str]

    def __init__(self, model: str, token_text: Callable[[int], str], options: ResponseOptions) -> None:
        self.token_text, self.options = token_text, options
        self._opened: set[int] = set()  # choices of which something was written
        self._written: Counter[int] = Counter()  # completion tokens, by choice
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def body(self, answers: Sequence[ReportedTokens], choices: Choices) -> dict[str, Any]:
        """Return the body of a non-streamed response."""
        listed = [self._choice(each, self.text(each)) for each in answers]
        content = {
            **self._head,
            "object": self.whole_name,
            "choices": listed,
            "usage": usage(choices),
            **choices.metrics,
        }
        if self.options.include_prompt_logprobs:
            self.add_prompts(content, [self._of_prompt(output) for output in choices.outputs])
        return content

    def pieces(self, tokens: ReportedTokens) -> Iterator[bytes]:
        """Yield the events for a choice's next tokens."""
        return map(event, self.contents(tokens))

    def waiting(self) -> Iterator[bytes]:
        """Yield a comment."""
        yield WAITING

    def closing(self, choices: Choices) -> Iterator[bytes]:
        """Yield the usage event, if requested, and the end of the stream."""
        if self.options.includes_usage:
            yield event({**self._piece([]), "usage": usage(choices), **choices.metrics})
        yield DONE

    def failure(self, refusal: HttpRefusal) -> Iterator[bytes]:
        """Yield the error as an event, and the end of the stream."""
        yield event(error_body(refusal))
        yield DONE

    def contents(self, tokens: ReportedTokens) -> Iterator[dict[str, Any]]:
        """Yield the stream content of a choice's next tokens; nothing while they form an incomplete character."""
        self._written[tokens.choice] += len(tokens.token_ids)
        if not tokens.is_empty or (self.options.shows_token_ids and tokens.token_ids):
            yield self._of_choice(tokens, self._choice(tokens, self.text_piece(tokens)))

    def _of_choice(self, tokens: ReportedTokens, choice: dict[str, Any]) -> dict[str, Any]:
        """Return one piece of a stream, with the choice's usage so far if requested.

        It is null if only the last piece has usage, as in OpenAI's API.
        """
        piece = self._piece([choice])
        if self.options.includes_usage:
            counts = token_counts(len(tokens.prompt), self._written[tokens.choice])
            piece["usage"] = counts if self.options.running_usage else None
        return piece

    def _piece(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": self.piece_name, "choices": choices}

    def _choice(self, tokens: ReportedTokens, content: dict[str, Any]) -> dict[str, Any]:
        logprobs = self.logprobs(tokens) if tokens.logprobs else None
        ended = {"finish_reason": finish(tokens.finish_reason), "stop_reason": tokens.stop_reason}
        choice = {"index": tokens.choice, **content, "logprobs": logprobs, **ended}
        choice |= {"token_ids": tokens.token_ids} if self.options.shows_token_ids else {}
        return choice | ({"drafted": tokens.runs} if self.options.shows_drafted else {})

    def opens(self, tokens: ReportedTokens) -> bool:
        """Return True if these are the first tokens of their choice that are written."""
        is_first = tokens.choice not in self._opened
        self._opened.add(tokens.choice)
        return is_first

    def prompt_ids(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Return the token ids of the prompt, if requested."""
        return {"prompt_token_ids": tokens.prompt} if self.options.shows_token_ids else {}

    def _of_prompt(self, output: RequestOutput) -> list[dict[str, Any] | None]:
        """Return the prompt's logprobs in vLLM's format: by token id, the top tokens and the token itself."""
        entries: list[dict[str, Any] | None] = []
        for each in output.prompt_logprobs:
            if each is None:
                entries.append(None)
                continue
            ranked = {token: (rank, value) for rank, (token, value) in enumerate(each.top, 1)}
            ranked[each.token_id] = each.rank, each.logprob
            entries.append(
                {
                    str(token): {"logprob": value, "rank": rank, "decoded_token": self.token_text(token)}
                    for token, (rank, value) in ranked.items()
                }
            )
        return entries

    @abstractmethod
    def add_prompts(self, body: dict[str, Any], found: list[Any]) -> None:
        """Add the prompt logprobs of all choices to a response."""

    @abstractmethod
    def text(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Return the text of a finished choice."""

    @abstractmethod
    def text_piece(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Return the next piece of a choice's text."""

    @abstractmethod
    def logprobs(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Return the logprobs of a choice's next tokens."""


class CompletionAnswer(Answer):
    """Completion response."""

    prefix, whole_name, piece_name = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        model: str,
        token_text: Callable[[int], str],
        text_bytes: Callable[[int], bytes],
        options: ResponseOptions,
    ) -> None:
        """``text_bytes`` returns the bytes that a token adds to a text: none for a special token."""
        super().__init__(model, token_text, options)
        self._text_bytes = text_bytes
        self._offsets: dict[int, _Offsets] = {}  # by choice

    def text(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Return the text; the first one has the prompt's token ids, if requested."""
        return {"text": tokens.text, **(self.prompt_ids(tokens) if self.opens(tokens) else {})}

    text_piece = text

    def add_prompts(self, body: dict[str, Any], found: list[Any]) -> None:
        """Add the logprobs to every choice."""
        for choice, each in zip(body["choices"], found, strict=True):
            choice["prompt_logprobs"] = each

    def logprobs(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Return parallel lists. The top tokens include the chosen one."""
        found: Logprobs = tokens.logprobs
        ids = [tokens.prompt[0] if each is None else each.token_id for each in found]
        offsets = self._offsets.setdefault(tokens.choice, _Offsets(self.token_text, self._text_bytes))
        num_echoed = len(ids) - len(tokens.token_ids)
        return {
            "tokens": [self.token_text(token) for token in ids],
            "token_logprobs": [each and each.logprob for each in found],
            "top_logprobs": [each and self._likely(each) for each in found],
            "text_offset": [*offsets.of_echo(ids[:num_echoed], tokens.echo), *offsets.of(ids[num_echoed:])],
        }

    def _likely(self, found: TokenLogprob) -> dict[str, float]:
        """Return the top tokens by text. If several ids have the same text, keep the most likely."""
        likely: dict[str, float] = {}
        for token, value in (*found.top, (found.token_id, found.logprob)):
            likely.setdefault(self.token_text(token), value)
        return likely


class _Offsets:
    """Where the tokens of one choice begin in its text. A character of several tokens ends with the last of them."""

    def __init__(self, token_text: Callable[[int], str], text_bytes: Callable[[int], bytes]) -> None:
        self._token_text, self._text_bytes = token_text, text_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def of_echo(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the offsets of the prompt's tokens in its echoed ``text``, which the answer follows.

        The text has only those special tokens that the prompt spells out, and no space that the tokenizer puts first.
        """
        offsets = list[int]()
        for token in ids:
            offsets += self.of([token])
            own_text = self._token_text(token)
            if not self._text_bytes(token):
                self._at += len(own_text) if text.startswith(own_text, self._at) else 0
            elif self._at and not offsets[-1] and own_text.startswith(" ") and not text.startswith(" "):
                self._at -= 1
        if ids:
            self._at = len(text)
            self._decoder.reset()  # the answer does not complete a character of the prompt
        return offsets

    def of(self, ids: Sequence[int]) -> list[int]:
        """Return the offsets of the next tokens."""
        offsets = []
        for token in ids:
            offsets.append(self._at)
            self._at += len(self._decoder.decode(self._text_bytes(token)))
        return offsets


def finish(reason: str | None) -> str | None:
    """Return OpenAI's finish reason; None if the server cut the choice off while shutting down."""
    return "length" if reason == "abort" else reason
