"""Compare the greedy text and the acceptance length of two engines on the same prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..console.progress import Advance

if TYPE_CHECKING:
    from ...engines import Engine, RequestOutput

MAX_TOKENS = 96


@dataclass(frozen=True)
class GreedyAgreement:
    """Agreement of the greedy tokens of two engines, by position.

    ``first_difference``: position of the first difference of each prompt; None if there is none.
    """

    prompts: int
    tokens: int
    equal_share: float
    identical: int
    first_difference: tuple[int | None, ...]


@dataclass(frozen=True)
class AcceptanceLength:
    """Tokens per round with ``k`` speculative tokens, over all prompts.

    ``before``: the unquantized pair. ``after``: the quantized pair. ``error``: standard error of the relative
    ``change``, from the variation between prompts.
    """

    k: int
    prompts: int
    rounds: int
    before: float
    after: float
    error: float

    @property
    def change(self) -> float:
        """Relative change of the acceptance length."""
        return self.after / self.before - 1


Outputs = Sequence["RequestOutput"]


def generate(engine: Engine, prompts: Sequence[Sequence[int]], k: int, advance: Advance) -> list[RequestOutput]:
    """Continue every prompt greedily with ``k`` speculative tokens per round."""
    from ...engines import SamplingParams

    outputs = []
    for prompt in prompts:
        room = engine.max_seq_len - len(prompt)
        params = SamplingParams(max_tokens=min(MAX_TOKENS, room), ignore_eos=True)
        outputs += engine.generate([prompt], params, num_speculative_tokens=k)
        advance(1)
    return outputs


def compare_tokens(reference: Outputs, quantized: Outputs) -> GreedyAgreement:
    """Compare the greedy tokens of two engines. Both lists are in the order of the prompts."""
    equal = tokens = 0
    first: list[int | None] = []
    for one, other in zip(reference, quantized, strict=True):
        pairs = list(zip(one.token_ids, other.token_ids, strict=False))
        length = max(len(one.token_ids), len(other.token_ids))
        same = [a == b for a, b in pairs] + [False] * (length - len(pairs))
        equal += sum(same)
        tokens += length
        first.append(same.index(False) if False in same else None)
    return GreedyAgreement(len(first), tokens, equal / tokens if tokens else math.nan, first.count(None), tuple(first))


def compare_acceptance(reference: Outputs, quantized: Outputs, k: int) -> AcceptanceLength:
    """Compare the acceptance lengths of two engines. Both lists are in the order of the prompts.

    The length is NaN if nothing was drafted.
    """
    before, after = _length(reference), _length(quantized)
    rounds = sum(output.acceptance.rounds for output in quantized)
    return AcceptanceLength(k, len(quantized), rounds, before, after, _error(reference, quantized))


def _length(outputs: Outputs) -> float:
    rounds = sum(output.acceptance.rounds for output in outputs)
    return 1 + sum(output.acceptance.accepted for output in outputs) / rounds if rounds else math.nan


def _error(reference: Outputs, quantized: Outputs) -> float:
    """Return the standard error of the change by the jackknife over prompts, because the change is a ratio of sums."""
    count = len(reference)
    if count < 2:
        return math.nan
    changes = []
    for out in range(count):
        some = [[*outputs[:out], *outputs[out + 1 :]] for outputs in (reference, quantized)]
        changes.append(_length(some[1]) / _length(some[0]) - 1)
    mean = sum(changes) / count
    return math.sqrt((count - 1) / count * sum((change - mean) ** 2 for change in changes))
