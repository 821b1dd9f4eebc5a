"""The same tokens with speculation on and off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bundled.prompts import Prompt
from ..console.progress import Progress
from .room import fitted
from .ties import is_tie

if TYPE_CHECKING:
    from ...engines import Engine, SamplingParams

TEMPERATURE = 0.8


@dataclass(frozen=True)
class Divergence:
    """The first token of one prompt that speculation changed. ``margin`` is between the logits of the two tokens.

    ``tie``: plain decoding in other windows gives the changed one as well (``ties``).
    """

    prompt: str
    policy: str
    k: int
    position: int
    plain: int | None
    speculative: int | None
    margin: float
    tie: bool = False


@dataclass(frozen=True)
class Losslessness:
    """Speculation on against off: what was compared, how much of it differed, and where it first did.

    ``ties``: how many texts parted where the target itself gives either token; they are compared up to there.
    ``notes`` say what of the prompts the engine had no room for, ``finite`` whether logits of the first are numbers.
    """

    prompts: int
    max_tokens: int
    k: tuple[int, ...]
    policies: tuple[str, ...]
    tokens_compared: int
    tokens_differing: int
    acceptance_length: dict[str, float]
    divergences: tuple[Divergence, ...]
    ties: int = 0
    notes: tuple[str, ...] = ()
    finite: bool = True

    @property
    def passed(self) -> bool:
        """Whether anything was compared and nothing differed; logits that are no numbers decide nothing."""
        return self.finite and self.tokens_compared > 0 and not self.tokens_differing


def compare_on_and_off(
    engine: Engine,
    prompts: Sequence[Prompt],
    max_tokens: int,
    depths: Sequence[int],
    progress: Progress,
    *,
    exact: bool = True,
) -> Losslessness:
    """Greedy and seeded sampling, each with and without drafts.

    ``exact`` is for FP32, and for ONNX Runtime, whose windows agree to the bit: there a tie is a difference too.
    """
    from ...engines import SamplingParams

    begun = fitted(prompts, engine.tokenizer.encode, max_tokens, engine.max_seq_len)
    greedy = SamplingParams(max_tokens=begun.max_tokens, ignore_eos=True)
    policies = {"greedy": greedy, f"temperature {TEMPERATURE}": replace(greedy, temperature=TEMPERATURE)}
    compared = differing = 0
    lengths: dict[str, float] = {}
    divergences: list[Divergence] = []
    with progress.step("compare speculation on and off", len(policies) * (1 + len(depths)) * len(prompts)) as advance:
        for name, policy in policies.items():
            params = [replace(policy, seed=seed) for seed in range(len(prompts))]
            plain = [_generate(engine, ids, s, 0) for (_, ids), s in zip(begun.ids, params, strict=True)]
            advance(len(prompts))
            for k in depths:
                rounds = accepted = 0
                for (prompt, ids), each, expected in zip(begun.ids, params, plain, strict=True):
                    output = _generate(engine, ids, each, k)
                    rounds += output.acceptance.rounds
                    accepted += output.acceptance.accepted
                    count, wrong = _compared(expected.token_ids, output.token_ids)
                    if wrong:
                        tie = not exact and _parts_at_a_tie(engine, wrong[0], each, expected, output)
                        count, wrong = (wrong[0], wrong[:1]) if tie else (count, wrong)
                        differing += 0 if tie else len(wrong)
                        divergences.append(_divergence(engine, prompt, name, k, wrong[0], expected, output, tie=tie))
                    compared += count
                    advance(1)
                lengths[f"{name}, K = {k}"] = round(1 + accepted / max(rounds, 1), 3)
    return Losslessness(
        prompts=len(prompts),
        max_tokens=begun.max_tokens,
        k=tuple(depths),
        policies=tuple(policies),
        tokens_compared=compared,
        tokens_differing=differing,
        acceptance_length=lengths,
        divergences=tuple(divergences),
        ties=sum(each.tie for each in divergences),
        notes=begun.notes,
        finite=all(bool(np.isfinite(engine.target_logits(ids)).all()) for _, ids in begun.ids[:1]),
    )


def _generate(engine: Engine, prompt: Sequence[int], params: SamplingParams, k: int) -> Any:
    return engine.generate([prompt], params, num_speculative_tokens=k)[0]


def _compared(expected: Sequence[int], found: Sequence[int]) -> tuple[int, list[int]]:
    """How many positions two outputs have, and those at which they are not the same, as where a token is missing."""
    longest = max(len(expected), len(found))
    return longest, [i for i in range(longest) if tuple(expected[i : i + 1]) != tuple(found[i : i + 1])]


def _parts_at_a_tie(engine: Engine, position: int, params: SamplingParams, expected: Any, found: Any) -> bool:
    if position >= len(found.token_ids):
        return False
    before = (*expected.prompt_token_ids, *expected.token_ids[:position])
    return is_tie(engine, before, found.token_ids[position], params)


def _divergence(
    engine: Engine, prompt: str, policy: str, k: int, position: int, expected: Any, found: Any, *, tie: bool
) -> Divergence:
    """The two tokens at ``position`` and how far apart the target's own logits hold them."""
    logits = engine.target_logits([*expected.prompt_token_ids, *expected.token_ids[:position]])[-1]
    plain, speculative = (
        output.token_ids[position] if position < len(output.token_ids) else None for output in (expected, found)
    )
    both = plain is not None and speculative is not None
    margin = float(abs(logits[plain] - logits[speculative])) if both else 0.0
    return Divergence(prompt, policy, k, position, plain, speculative, margin, tie)
