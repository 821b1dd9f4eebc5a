"""Prove an engine lossless (the same tokens with speculation on and off), and its logits those of torch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parity import Parity, compare_with_sources
from .progress import Progress, Quiet
from .prompt_set import Prompt, code_prompts

if TYPE_CHECKING:
    from ..engines import Engine, SamplingParams

FILE_NAME = "verify.json"
DEFAULT_K = (1, 3, 5, 8)
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


@dataclass(frozen=True)
class Verification:
    """Everything ``verify`` found out."""

    engine: str
    product_version: str
    losslessness: Losslessness
    parity: tuple[Parity, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether no check failed; a check that could not be made does not fail."""
        return self.losslessness.passed and all(check.status != "failed" for check in self.parity)

    def as_json(self) -> dict[str, Any]:
        """What ``verify.json`` holds."""
        losslessness = {"passed": self.losslessness.passed, **asdict(self.losslessness)}
        return {"passed": self.passed, **asdict(self), "losslessness": losslessness}


def verify(
    engine: Engine,
    *,
    prompts: Sequence[Prompt] | None = None,
    max_tokens: int = 128,
    k: Sequence[int] = DEFAULT_K,
    progress: Progress | None = None,
) -> Verification:
    """Check ``engine`` and write ``verify.json`` into its folder; a K that it has no room for is left out."""
    progress = progress or Quiet()
    prompts = code_prompts() if prompts is None else prompts
    most = engine.manifest.speculation.max_num_speculative_tokens
    losslessness = _losslessness(engine, prompts, max_tokens, [i for i in k if i <= most] or [most], progress)
    parity = compare_with_sources(engine, prompts, progress)
    found = Verification(str(engine.folder), engine.manifest.product_version, losslessness, parity)
    _write(engine.folder / FILE_NAME, found.as_json())
    return found


def _losslessness(
    engine: Engine, prompts: Sequence[Prompt], max_tokens: int, depths: Sequence[int], progress: Progress
) -> Losslessness:
    from ..engines import SamplingParams

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


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)
