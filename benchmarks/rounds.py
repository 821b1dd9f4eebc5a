"""What comparisons with other runtimes share: greedy answers with their rounds, and their first difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from peagle.compiler.bench.workloads import EncodedPrompt, encode_prompts, human_eval_prompts, spaced
from peagle.compiler.console.progress import Quiet
from peagle.engines import Engine, SamplingParams


@dataclass(frozen=True)
class Answer:
    """The ids of a greedy answer, and for each round with drafts how many were verified and how many accepted."""

    tokens: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    @classmethod
    def of(cls, engine: Engine, prompt: Sequence[int], count: int, draft: str, k: int) -> Answer:
        """Return the answer of at most ``count`` tokens of an engine of this project."""
        params = SamplingParams(max_tokens=count)
        (output,) = engine.generate([prompt], params, num_speculative_tokens=k, draft=draft)
        rounds = output.acceptance
        return cls(tuple(output.token_ids), tuple(rounds.drafted_by_round), tuple(rounds.accepted_by_round))


@dataclass(frozen=True)
class Difference:
    """The first difference in the order of the text: ``place`` is its token.

    ``ours`` and ``theirs`` are ids, or, if ``round`` is set, drafted and accepted numbers of that round; None is
    nothing, where one of the answers has ended.
    """

    place: int
    ours: int | tuple[int, int] | None
    theirs: int | tuple[int, int] | None
    round: int | None = None


def first_difference(ours: Answer, theirs: Answer) -> Difference | None:
    """Return the first different token or round, or None if both answers are equal.

    A round with another token among those that both emitted differs because of the token, which is then returned.
    """
    token = next(
        (Difference(at, a, b) for at, (a, b) in enumerate(zip_longest(ours.tokens, theirs.tokens)) if a != b), None
    )
    rounds = [list(zip(each.drafted, each.accepted, strict=True)) for each in (ours, theirs)]
    for number, (a, b) in enumerate(zip_longest(*rounds)):
        if a != b:
            begin = 1 + sum(accepted + 1 for _, accepted in rounds[0][:number])  # the prompt's pass emits one token
            both = min(a[1] if a else 0, b[1] if b else 0)
            if token is None or token.place > begin + both:
                return Difference(begin, a, b, number)
            break
    return token


def accepted_by_position(answers: Sequence[Answer], k: int) -> tuple[int, ...]:
    """Return in how many rounds at least the first draft, the first two, ... all ``k`` were accepted."""
    counts = [0] * (k + 1)
    for answer in answers:
        for accepted in answer.accepted:
            counts[accepted] += 1
    return tuple(accumulate(reversed(counts[1:])))[::-1]


def acceptance_length(answers: Sequence[Answer]) -> float:
    """Return the mean number of tokens that a round with drafts emits; 1 if there are none."""
    rounds = sum(len(answer.accepted) for answer in answers)
    return 1 + sum(sum(answer.accepted) for answer in answers) / rounds if rounds else 1.0


def prompts_for(engine: Engine, count: int, tokens: int) -> tuple[EncodedPrompt, ...]:
    """Return ``count`` prompts of HumanEval in the engine's chat template, with room for ``tokens`` more."""
    found = spaced(human_eval_prompts(Quiet()), count)
    return encode_prompts(engine, "humaneval", found, engine.max_seq_len - tokens).prompts


def figures(answers: Sequence[Answer], k: int) -> str:
    """Return rounds, drafts, accepted drafts by position and the acceptance length, as cells of a table."""
    rounds, drafted = (sum(map(len, (a.accepted for a in answers))), sum(sum(a.drafted) for a in answers))
    positions = " ".join(f"{count:,}" for count in accepted_by_position(answers, k))
    return f"{rounds:,} | {drafted:,} | {positions} | {acceptance_length(answers):.3f}"
