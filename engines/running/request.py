"""A request: one prompt, from submission to its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ...plugins.errors import EnvironmentProblem, PeagleError
from ..draft_methods import DraftMethod
from ..policy.drafts_per_round import Policy
from ..requests.params import SamplingParams
from ..requests.results import Acceptance, Delta, RequestOutput
from ..text.transcript import Transcript
from .logprobs import PromptLogprobs
from .submission import Delivery
from .token_choice import TokenChoice


class Drafter(Protocol):
    """A drafter that a backend has loaded beside its own; its memory is free when nothing refers to it any more."""

    @property
    def key(self) -> str:
        """A text that drafters with other cache entries do not have."""
        ...


@dataclass(eq=False)
class Request:
    """One prompt and its state. ``seed`` is the one in effect, drawn at random if the parameters have none.

    ``room`` is the maximum number of new tokens. ``method`` drafts, and ``policy`` chooses K. A method with a head uses
    the ``drafter`` (None: the backend's own), which the engine calls ``drafter_name``. ``deadline`` and
    ``submitted`` are times of ``time.perf_counter``. ``launched`` counts passes whose tokens have not been read, and
    ``ahead`` the maximum number of tokens of those. ``cached`` is the number of prompt tokens from the prefix cache.
    Of waiting requests, those with the lowest ``priority`` start first. The text begins ``in_thought`` if the prompt
    has opened reasoning.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    transcript: Transcript
    room: int
    method: DraftMethod
    policy: Policy
    delivery: Delivery = field(default_factory=Delivery)
    submitted: float = 0.0
    deadline: float = math.inf
    priority: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    prefill_began: float = 0.0
    decode_began: float = 0.0
    launched: int = 0
    ahead: int = 0
    cached: int = 0
    failure: PeagleError | None = None  # set instead of a result
    choice: TokenChoice | None = None  # chooses or inspects its tokens on the host
    prompt_logprobs: PromptLogprobs | None = None  # collects the prompt's logprobs, if requested
    drafter: Drafter | None = None
    drafter_name: str = ""
    in_thought: bool = False

    def __post_init__(self) -> None:
        self.acceptance.tolerance = self.params.acceptance_tolerance

    def extend(self, tokens: Sequence[int], accepted: int) -> None:
        """Append the tokens of a pass, the first ``accepted`` of them drafts.

        End the request if the text cannot continue.

        The cause can be its grammar, or a tokenizer error.
        """
        failure: PeagleError | None = self.choice.failure if self.choice else None
        if self.choice and (grammar := self.choice.grammar):
            acceptance = self.acceptance
            acceptance.grammar_drafted, acceptance.grammar_accepted = grammar.drafted, grammar.accepted
            acceptance.grammar_refused = grammar.refused
        try:
            self.transcript.extend(tokens if failure is None else tokens[:-1], accepted)
        except EnvironmentProblem as error:
            failure = error
        if failure is not None and not self.is_done:
            self.failure = failure
            self.transcript.abort()

    def release(self) -> None:
        """Drop what only a running request needs: a call with many prompts holds all of its requests to the end."""
        self.choice = self.prompt_logprobs = self.drafter = None

    def take(self) -> Delta:
        """Return the text and tokens that can be shown since the last call."""
        delta, end = self.transcript.take(), len(self.transcript.token_ids)
        if self.choice is not None:
            delta = replace(delta, logprobs=tuple(self.choice.logprobs[end - len(delta.token_ids) : end]))
        if self.prompt_logprobs is not None and end == len(delta.token_ids):
            delta = replace(delta, prompt_logprobs=self.prompt_logprobs.entries())
        return delta

    @property
    def salt(self) -> str | None:
        """Text that sets its cache entries apart from those of other salts and of other drafters."""
        salt = self.params.cache_salt
        if self.drafter is None:
            return salt and f" {salt}"  # no key begins with a space, so no salt of a client is that of a drafter
        return f"{self.drafter.key} {salt or ''}"

    @property
    def num_written(self) -> int:
        """Number of tokens of its text."""
        return len(self.transcript.token_ids)

    @property
    def is_done(self) -> bool:
        """Return True if its text has ended."""
        return self.transcript.finish_reason is not None

    @property
    def completes_next_round(self) -> bool:
        """Return True if the launched passes end it in any case; each brings at least one token."""
        return len(self.transcript.token_ids) + self.launched >= self.room

    @property
    def max_committed(self) -> int:
        """Number of prompt and text tokens if everything launched is accepted."""
        return len(self.prompt) + len(self.transcript.token_ids) + self.ahead

    def output(self, now: float, warnings: tuple[str, ...] = ()) -> RequestOutput:
        """Return the result of a finished request; ``now`` is its end time, ``warnings`` are the engine's."""
        text = self.transcript
        if text.finish_reason is None:
            raise ValueError("the request has not finished")
        prefill_began = self.prefill_began or now
        decode_began = self.decode_began or now
        return RequestOutput(
            self.prompt,
            tuple(text.token_ids),
            text.text,
            text.finish_reason,
            self.acceptance,
            self.seed,
            decode_began - prefill_began,
            now - decode_began,
            tuple(text.drafted),
            prefill_began - self.submitted if self.submitted else 0.0,
            cached_tokens=self.cached,
            logprobs=tuple(self.choice.logprobs[: len(text.token_ids)]) if self.choice else (),
            stop_reason=text.stop_reason,
            warnings=warnings,
            prompt_logprobs=self.prompt_logprobs.entries() if self.prompt_logprobs else (),
            draft=self.method.name,
            drafter=self.drafter_name,
            in_thought=self.in_thought,
        )
