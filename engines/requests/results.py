"""Results of a request: its output, the pieces of a stream, and how speculation went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "timeout"]
LATER = 20  # iterations of a request; the acceptance of those that follow is counted separately as well


@dataclass
class Acceptance:
    """How speculation went for one request (or, added up, for many).

    ``rounds`` are those that verified drafts, and ``histogram[a]`` counts those in which exactly ``a`` were accepted.
    ``undrafted`` rounds had none to verify, and emitted one token. The first token of a request comes from its prompt
    pass and belongs to no round. ``tolerance`` is the ``acceptance_tolerance`` of the request, the highest of many.

    ``later_rounds`` are the rounds with drafts after the first ``LATER`` rounds of a request, with drafts or without.
    ``later_accepted`` are the drafts accepted in them: the first rounds of a text are not typical of the rest.
    ``verify_seconds`` and ``draft_seconds`` are the target's and the drafter's time in all rounds, shared with other
    requests of the same rounds; 0 on TensorRT, where none is taken.

    Of texts that must have a form: ``grammar_drafted`` of the drafts were what the form forces, and
    ``grammar_accepted`` of those accepted; ``grammar_refused`` are drafts of the drafter that these replaced, or that
    the form does not let follow, which were not verified.
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

    @property
    def is_lossy(self) -> bool:
        """Whether drafts counted as accepted need not be the target's own tokens."""
        return self.tolerance > 0 and self.drafted > 0

    def add_round(self, drafted: int, accepted: int, pass_seconds: tuple[float, float] | None = None) -> None:
        """Count the next round of a request."""
        is_later = self.rounds + self.undrafted >= LATER
        verify, draft = pass_seconds or (0.0, 0.0)
        self.verify_seconds += verify
        self.draft_seconds += draft
        if not drafted:
            self.undrafted += 1
            return
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.histogram[accepted] = self.histogram.get(accepted, 0) + 1
        if is_later:
            self.later_rounds += 1
            self.later_accepted += accepted

    def add(self, other: Acceptance) -> None:
        """Count another request's rounds too."""
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
        """Mean tokens of the rounds with drafts, the target's own among them: 1 + accepted / rounds (1.0 without)."""
        return 1.0 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def later_acceptance_length(self) -> float:
        """Mean tokens of the rounds with drafts after the first ``LATER`` rounds of a request (1.0 without)."""
        return 1.0 + self.later_accepted / self.later_rounds if self.later_rounds else 1.0

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        """How many rounds accepted their first draft, their second, and so on."""
        deepest = max((accepted for accepted, rounds in self.histogram.items() if rounds), default=0)
        return tuple(
            sum(rounds for accepted, rounds in self.histogram.items() if accepted > position)
            for position in range(deepest)
        )

    @property
    def milliseconds_per_round(self) -> tuple[float, float]:
        """Mean time of the target's pass and of the drafter's, over all rounds."""
        rounds = max(self.rounds + self.undrafted, 1)
        return 1000 * self.verify_seconds / rounds, 1000 * self.draft_seconds / rounds

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens of all rounds; less than ``acceptance_length`` where some had no drafts."""
        rounds = self.rounds + self.undrafted
        return 1.0 + self.accepted / rounds if rounds else 1.0


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the target thought an emitted token, in natural logarithms, and its ``rank``: 1 is the most likely.

    ``top`` are the most likely ids and theirs, best first. All are of its logits before any sampling parameter.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class RequestOutput:
    """The result of one request, finished.

    Wall clock: ``queue_seconds`` until its prompt was begun, ``prefill_seconds`` from there to its first token,
    ``decode_seconds`` after that; other requests have their passes within both. ``drafted`` says of every token whether
    it was a draft that the target accepted, and not the target's own. ``logprobs`` are there where asked for.
    ``cached_tokens`` of the prompt were not computed again, since a prompt before began with them. ``stop_reason`` is
    the stop string or the one of ``stop_token_ids`` that ended it. ``prompt_logprobs`` has an entry for each token of
    the prompt where asked for; that of the first, which follows nothing, is None. ``warnings`` are of the engine, as
    far as they concern how it went: that its drafter does not belong to its target. ``draft`` names the draft method.
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

    @property
    def time_to_first_token(self) -> float:
        """Seconds from submitting to the first token."""
        return self.queue_seconds + self.prefill_seconds

    @property
    def inter_token_latency(self) -> float:
        """Mean seconds between tokens after the first; 0 where there are none. Those of a round come together."""
        return self.decode_seconds / (len(self.token_ids) - 1) if len(self.token_ids) > 1 else 0.0


@dataclass(frozen=True)
class Delta:
    """A piece of a streamed request: what a round, or the prompt's pass, brought. The last has a ``finish_reason``.

    ``text`` may be empty: a token can be a part of a character, a special one, or wait for a stop string to go on.
    ``drafted`` says of each of the ``token_ids`` whether it is an accepted draft. ``runs`` are the text once more, cut
    where that changes: ``(text, is drafted)``; a character of several tokens belongs to the last of them.
    ``logprobs`` of the ``token_ids`` are there where asked for, and the prompt's in the first piece.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    drafted: tuple[bool, ...] = ()
    runs: tuple[tuple[str, bool], ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    stop_reason: int | str | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
