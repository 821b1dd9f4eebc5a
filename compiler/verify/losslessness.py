"""The same tokens with speculation on and off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from ..prompt_set import Prompt

if TYPE_CHECKING:
    from ...engines import Engine, SamplingParams

TEMPERATURE = 0.8


@dataclass(frozen=True)
class Divergence:
    """The first token of one prompt that speculation changed. ``margin`` is between the logits of the two tokens."""

    prompt: str
    policy: str
    k: int
    position: int
    plain: int | None
    speculative: int | None
    margin: float


@dataclass(frozen=True)
class Losslessness:
    """Speculation on against off: what was compared, how much of it differed, and where it first did."""

    prompts: int
    max_tokens: int
    k: tuple[int, ...]
    policies: tuple[str, ...]
    tokens_compared: int
    tokens_differing: int
    acceptance_length: dict[str, float]
    divergences: tuple[Divergence, ...]

    @property
    def passed(self) -> bool:
        """Whether anything was compared and nothing differed."""
        return self.tokens_compared > 0 and not self.tokens_differing


def compare_on_and_off(
    engine: Engine, prompts: Sequence[Prompt], max_tokens: int, depths: Sequence[int], progress: Progress
) -> Losslessness:
    """Greedy and seeded sampling, each with and without drafts."""
    from ...engines import SamplingParams

    greedy = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    policies = {"greedy": greedy, f"temperature {TEMPERATURE}": replace(greedy, temperature=TEMPERATURE)}
    compared = differing = 0
    lengths: dict[str, float] = {}
    divergences: list[Divergence] = []
    with progress.step("compare speculation on and off", len(policies) * (1 + len(depths)) * len(prompts)) as advance:
        for name, policy in policies.items():
            params = [replace(policy, seed=seed) for seed in range(len(prompts))]
            plain = [_generate(engine, p, s, 0) for p, s in zip(prompts, params, strict=True)]
            advance(len(prompts))
            for k in depths:
                rounds = accepted = 0
                for prompt, each, expected in zip(prompts, params, plain, strict=True):
                    output = _generate(engine, prompt, each, k)
                    rounds += output.acceptance.rounds
                    accepted += output.acceptance.accepted
                    compared += max(len(expected.token_ids), len(output.token_ids))
                    wrong = _differing(expected.token_ids, output.token_ids)
                    if wrong:
                        differing += len(wrong)
                        divergences.append(_divergence(engine, prompt, name, k, wrong[0], expected, output))
                    advance(1)
                lengths[f"{name}, K = {k}"] = round(1 + accepted / max(rounds, 1), 3)
    return Losslessness(
        len(prompts), max_tokens, tuple(depths), tuple(policies), compared, differing, lengths, tuple(divergences)
    )


def _generate(engine: Engine, prompt: Prompt, params: SamplingParams, k: int) -> Any:
    return engine.generate([prompt.text], params, num_speculative_tokens=k)[0]


def _differing(expected: Sequence[int], found: Sequence[int]) -> list[int]:
    """Positions at which two outputs are not the same; a missing token is a different one."""
    longest = max(len(expected), len(found))
    return [i for i in range(longest) if tuple(expected[i : i + 1]) != tuple(found[i : i + 1])]


def _divergence(
    engine: Engine, prompt: Prompt, policy: str, k: int, position: int, expected: Any, found: Any
) -> Divergence:
    """The two tokens at ``position`` and how far apart the target's own logits hold them."""
    logits = engine.target_logits([*expected.prompt_token_ids, *expected.token_ids[:position]])[-1]
    plain, speculative = (
        output.token_ids[position] if position < len(output.token_ids) else None for output in (expected, found)
    )
    both = plain is not None and speculative is not None
    margin = float(abs(logits[plain] - logits[speculative])) if both else 0.0
    return Divergence(prompt.id, policy, k, position, plain, speculative, margin)
