"""A request: one prompt on its way through the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...plugins.errors import EnvironmentProblem, PeagleError
from ..draft_methods import DraftMethod
from ..policy.drafts_per_round import Policy
from ..requests.params import SamplingParams
from ..requests.results import Acceptance, Delta, RequestOutput
from ..text.transcript import Transcript
from .logprobs import PromptLogprobs
from .submission import Delivery
from .token_choice import TokenChoice


@dataclass(eq=False)
class Request:
    """One prompt with what it has got so far. ``seed`` is the one in effect, drawn if the params leave it open.

    ``room`` is the most tokens it may get. ``method`` drafts for it, ``policy`` says how many. ``deadline`` and
    ``submitted`` are seconds of ``time.perf_counter``. ``launched`` counts passes whose tokens have not been read,
    ``ahead`` how many tokens those may bring at most. ``cached`` tokens of the prompt were read for another one.
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
    acceptance: Acceptance = field(default_factory=Acceptance)
    prefill_began: float = 0.0
    decode_began: float = 0.0
    launched: int = 0
    ahead: int = 0
    cached: int = 0
    failure: PeagleError | None = None  # in place of a result
    choice: TokenChoice | None = None  # what chooses its tokens, or looks at them, on the host
    prompt_logprobs: PromptLogprobs | None = None  # what collects those of its prompt, where they are asked for

    def __post_init__(self) -> None:
        self.acceptance.tolerance = self.params.acceptance_tolerance

    def extend(self, tokens: Sequence[int], accepted: int) -> None:
        """Append what a pass emitted, the first ``accepted`` of them drafts; ends it where the text cannot go on.

        That may be because of its form, or because the tokenizer fails with its tokens.
        """
        failure: PeagleError | None = self.choice.failure if self.choice else None
        if self.choice and (grammar := self.choice.grammar):
            told = self.acceptance
            told.grammar_drafted, told.grammar_accepted = grammar.drafted, grammar.accepted
            told.grammar_refused = grammar.refused
        try:
            self.transcript.extend(tokens if failure is None else tokens[:-1], accepted)
        except EnvironmentProblem as error:
            failure = error
        if failure is not None and not self.is_done:
            self.failure = failure
            self.transcript.abort()

    def take(self) -> Delta:
        """Return what has become showable since the last call."""
        delta, end = self.transcript.take(), len(self.transcript.token_ids)
        if self.choice is not None:
            delta = replace(delta, logprobs=tuple(self.choice.logprobs[end - len(delta.token_ids) : end]))
        if self.prompt_logprobs is not None and end == len(delta.token_ids):
            delta = replace(delta, prompt_logprobs=self.prompt_logprobs.told())
        return delta

    @property
    def num_written(self) -> int:
        """How many tokens its text has."""
        return len(self.transcript.token_ids)

    @property
    def is_done(self) -> bool:
        """Whether its text has ended."""
        return self.transcript.finish_reason is not None

    @property
    def will_be_done(self) -> bool:
        """Whether it ends, whatever comes, with what was launched: a pass brings a token or more."""
        return len(self.transcript.token_ids) + self.launched >= self.room

    @property
    def most_committed(self) -> int:
        """Prompt and tokens together, if all that was launched is accepted."""
        return len(self.prompt) + len(self.transcript.token_ids) + self.ahead

    def output(self, now: float, warnings: tuple[str, ...] = ()) -> RequestOutput:
        """The result of a request that is done; ``now`` is when it ended, ``warnings`` are the engine's."""
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
            prompt_logprobs=self.prompt_logprobs.told() if self.prompt_logprobs else (),
            draft=self.method.name,
        )
