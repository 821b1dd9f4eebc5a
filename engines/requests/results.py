"""Results of a request: its output, the pieces of a stream, and speculation statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "timeout"]
LATER = 20  # rounds; acceptance after a request's first 20 rounds is also counted separately


@dataclass
class Acceptance:
    """Speculation statistics of one request, or the sum over several.

    ``rounds`` counts rounds that verified drafts, and ``histogram[a]`` those in which exactly ``a`` were accepted.
    ``undrafted`` counts rounds without drafts, which emit one token. The first token of a request comes from its prompt
    pass and belongs to no round. ``tolerance`` is the request's ``acceptance_tolerance``, or the highest of several.

    ``later_rounds`` counts the rounds with drafts after the first ``LATER`` rounds of a request, and ``later_accepted``
    the drafts accepted in them, because the first rounds of a text are not typical of the rest. ``verify_seconds`` and
    ``draft_seconds`` are the target's and the drafter's time in all rounds, shared with other requests of the same
    rounds; 0 on TensorRT, where it is not measured.

    For structured outputs, ``grammar_drafted`` counts drafts that the grammar forced, and ``grammar_accepted`` the
    accepted ones. ``grammar_refused`` counts drafts of the drafter that were replaced by these or that the grammar does
    not allow; they were not verified.

    ``drafted_by_round`` and ``accepted_by_round`` have an entry per round with drafts, in order, and ``passes`` one per
    round: the drafts that the target's pass verified, and its seconds. ``passes`` is empty where they are not measured.
    A sum over several requests has none of these.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: dict[int, int] = field(default_factory=dict)
    undrafted: int = 0
    tolerance: float = 0.0
    grammar_drafted: int = 0
    grammar_accepted: int = 0
    grammar_refused: int = 0
    later_rounds: int = 0
    later_accepted: int = 0
    verify_seconds: float = field(default=0.0, compare=False)
    draft_seconds: float = field(default=0.0, compare=False)
    drafted_by_round: list[int] = field(default_factory=list)
    accepted_by_round: list[int] = field(default_factory=list)
    passes: list[tuple[int, float]] = field(default_factory=list, compare=False)

    @property
    def is_lossy(self) -> bool:
        """Return True if accepted drafts may differ from the target's own tokens."""
        return self.tolerance > 0 and self.drafted > 0

    def add_round(self, drafted: int, accepted: int, pass_seconds: tuple[float, float] | None = None) -> None:
        """Count the next round of a request."""
        is_later = self.rounds + self.undrafted >= LATER
        verify, draft = pass_seconds or (0.0, 0.0)
        self.verify_seconds += verify
        self.draft_seconds += draft
        if pass_seconds:
            self.passes.append((drafted, verify))
        if not drafted:
            self.undrafted += 1
            return
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.histogram[accepted] = self.histogram.get(accepted, 0) + 1
        self.drafted_by_round.append(drafted)
        self.accepted_by_round.append(accepted)
        if is_later:
            self.later_rounds += 1
            self.later_accepted += accepted

    def add(self, other: Acceptance) -> None:
        """Add another request's statistics."""
        self.rounds += other.rounds
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.undrafted += other.undrafted
        self.tolerance = max(self.tolerance, other.tolerance)
        self.grammar_drafted += other.grammar_drafted
        self.grammar_accepted += other.grammar_accepted
        self.grammar_refused += other.grammar_refused
        self.later_rounds += other.later_rounds
        self.later_accepted += other.later_accepted
        self.verify_seconds += other.verify_seconds
        self.draft_seconds += other.draft_seconds
        for accepted, rounds in other.histogram.items():
            self.histogram[accepted] = self.histogram.get(accepted, 0) + rounds

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per round with drafts, including the target's: 1 + accepted / rounds (1.0 if none)."""
        return 1.0 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def later_acceptance_length(self) -> float:
        """Mean tokens per round with drafts after the first ``LATER`` rounds of a request (1.0 if there are none)."""
        return 1.0 + self.later_accepted / self.later_rounds if self.later_rounds else 1.0

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        """Numbers of rounds that accepted at least their first draft, at least two, and so on."""
        deepest = max((accepted for accepted, rounds in self.histogram.items() if rounds), default=0)
        return tuple(
            sum(rounds for accepted, rounds in self.histogram.items() if accepted > position)
            for position in range(deepest)
        )

    @property
    def milliseconds_per_round(self) -> tuple[float, float]:
        """Mean time of the target's and of the drafter's passes, over all rounds."""
        rounds = max(self.rounds + self.undrafted, 1)
        return 1000 * self.verify_seconds / rounds, 1000 * self.draft_seconds / rounds

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens per round, including rounds without drafts."""
        rounds = self.rounds + self.undrafted
        return 1.0 + self.accepted / rounds if rounds else 1.0


@dataclass(frozen=True)
class TokenLogprob:
    """The target's logprob of an emitted token (natural logarithm), and its ``rank``; 1 is the most likely.

    ``top`` are the most likely ids and their logprobs, best first. All come from the logits before any sampling
    parameter.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class RequestOutput:
    """The result of one finished request.

    Wall-clock times: ``queue_seconds`` until prompt processing started, ``prefill_seconds`` from there to the first
    token, ``decode_seconds`` after that; the last two include passes of other requests. ``drafted`` is True for every
    token that was an accepted draft, and False for the target's own tokens. ``logprobs`` are present if requested.
    ``cached_tokens`` prompt tokens were taken from the prefix cache. ``stop_reason`` is the stop string or the id in
    ``stop_token_ids`` that ended the text. ``prompt_logprobs``, if requested, has an entry per prompt token; the first
    is None. ``warnings`` are those of the engine that concern the request, such as a drafter that does not match its
    target. ``draft`` names the draft method, and ``drafter`` the drafter that it used, if it needs one. The text of a
    chat begins ``in_thought`` if its prompt has opened reasoning between tags.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    acceptance: Acceptance
    seed: int
    prefill_seconds: float
    decode_seconds: float
    drafted: tuple[bool, ...] = ()
    queue_seconds: float = 0.0
    logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0
    stop_reason: int | str | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    warnings: tuple[str, ...] = ()
    draft: str = ""
    drafter: str = ""
    in_thought: bool = False

    @property
    def time_to_first_token(self) -> float:
        """Seconds from submission to the first token."""
        return self.queue_seconds + self.prefill_seconds

    @property
    def inter_token_latency(self) -> float:
        """Mean seconds between tokens after the first; 0 if there are none. Tokens of one round arrive together."""
        return self.decode_seconds / (len(self.token_ids) - 1) if len(self.token_ids) > 1 else 0.0


@dataclass(frozen=True)
class Delta:
    """A piece of a streamed request: the tokens of one round or of the prompt's pass.

    The last one has a ``finish_reason``. ``text`` may be empty: a token can be part of a character, special, or held
    back because of a stop string. ``drafted`` is True for each of the ``token_ids`` that is an accepted draft.
    ``runs`` is the same text, split where this changes: ``(text, is drafted)``; a character of several tokens belongs
    to the last of them. ``logprobs`` of the ``token_ids`` are present if requested; those of the prompt come with the
    first piece.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    drafted: tuple[bool, ...] = ()
    runs: tuple[tuple[str, bool], ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    stop_reason: int | str | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
