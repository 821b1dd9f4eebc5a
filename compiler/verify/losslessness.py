"""Whether drafts or neighbours change a token: with them and without, the texts are the same but for ties.

A tie is a token that speculation changed, and that the target gives without any drafts as well. Windows of other widths
sum in another order. That moves the last bits, a rounding to codes or to 16 bits makes more of them, and now and then
two tokens are so close that it decides. Then plain decoding that was fed the same tokens in other windows gives either,
and nothing was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bundled.prompts import Prompt
from ..console.progress import Progress

if TYPE_CHECKING:
    from ...engines import Engine, RequestOutput, SamplingParams

TEMPERATURE = 0.8
_STEPS = (0, 1, 2, 3, 5, 8)  # tokens at the end that are decoded one by one; those before are one window


@dataclass(frozen=True)
class Divergence:
    """The first token of one prompt that speculation changed. ``margin`` is between the logits of the two tokens.

    ``tie``: plain decoding in other windows gives the changed one as well.
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
    ``draft``: the draft method. ``batch``: the most prompts that were in flight at once;
    what they are compared with was generated alone. With an ``acceptance_tolerance`` above 0 differences are what was
    asked for: they are counted, and not judged.
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
    draft: str = ""
    batch: int = 1
    acceptance_tolerance: float = 0.0

    @property
    def is_lossy(self) -> bool:
        """Whether drafts were accepted that need not be the target's own tokens."""
        return self.acceptance_tolerance > 0

    @property
    def passed(self) -> bool:
        """Whether anything was compared and nothing differed; logits that are no numbers decide nothing."""
        return self.finite and self.tokens_compared > 0 and (self.is_lossy or not self.tokens_differing)

    def as_json(self) -> dict[str, Any]:
        """Return the record for ``verify.json``; what was lossy has neither passed nor failed."""
        passed = None if self.is_lossy and self.passed else self.passed
        return {"passed": passed, "lossy": self.is_lossy, **asdict(self)}


@dataclass(frozen=True)
class Prefixes:
    """Token ids of every prompt, by its name; ``max_tokens`` is generated after each. ``notes``: what was cut."""

    ids: tuple[tuple[str, tuple[int, ...]], ...]
    max_tokens: int
    notes: tuple[str, ...] = ()


def compare_on_and_off(
    engine: Engine,
    prompts: Sequence[Prompt],
    max_tokens: int,
    depths: Sequence[int],
    progress: Progress,
    *,
    exact: bool = True,
    draft: str | None = None,
    batch: int = 1,
    acceptance_tolerance: float = 0.0,
) -> Losslessness:
    """Generate greedily and with seeded sampling, each with and without drafts, and compare the tokens.

    Without drafts every prompt is generated alone; with them 1, 2, .. ``batch`` and again 1 are in flight, for which
    the engine has room, and with K = 0 as well where that is more than one. ``draft`` says which drafts, where they are
    not the engine's own. ``exact`` is for FP32, and for ONNX Runtime, whose windows agree to the bit: there a tie is a
    difference too. ``acceptance_tolerance`` is for the texts with drafts, which are lossy then; no tie is looked for.
    """
    from ...engines import SamplingParams

    beginnings = fitted(prompts, engine.tokenizer.encode, max_tokens, engine.max_seq_len)
    greedy = SamplingParams(max_tokens=beginnings.max_tokens, ignore_eos=True)
    policies = {"greedy": greedy, f"temperature {TEMPERATURE}": replace(greedy, temperature=TEMPERATURE)}
    compared = differing = 0
    lengths: dict[str, float] = {}
    divergences: list[Divergence] = []
    tried = (0, *depths) if batch > 1 else depths
    groups = _groups(len(prompts), batch)
    with progress.step("compare speculation on and off", len(policies) * (1 + len(tried)) * len(prompts)) as advance:
        for name, policy in policies.items():
            params = [replace(policy, seed=seed) for seed in range(len(prompts))]
            plain: list[RequestOutput] = []
            for (_, ids), seeded in zip(beginnings.ids, params, strict=True):
                plain += _generate(engine, [ids], [seeded], 0)
                advance(1)
            for k in tried:
                rounds = accepted = 0
                outputs: list[RequestOutput] = []
                for group in groups:
                    together = [ids for _, ids in beginnings.ids[group]]
                    lossy = [replace(each, acceptance_tolerance=acceptance_tolerance) for each in params[group]]
                    outputs += _generate(engine, together, lossy, k, draft if k else None)
                    advance(len(together))
                for (prompt, _), seeded, expected, output in zip(beginnings.ids, params, plain, outputs, strict=True):
                    rounds += output.acceptance.rounds
                    accepted += output.acceptance.accepted
                    count, wrong = _compared(expected.token_ids, output.token_ids)
                    if wrong:
                        judged = not exact and not acceptance_tolerance
                        tie = judged and _parts_at_a_tie(engine, wrong[0], seeded, expected, output)
                        count, wrong = (wrong[0], wrong[:1]) if tie else (count, wrong)
                        differing += 0 if tie else len(wrong)
                        divergences.append(_divergence(engine, prompt, name, k, wrong[0], expected, output, tie=tie))
                    compared += count
                if k:
                    lengths[f"{name}, K = {k}"] = round(1 + accepted / max(rounds, 1), 3)
    return Losslessness(
        prompts=len(prompts),
        max_tokens=beginnings.max_tokens,
        k=tuple(tried),
        policies=tuple(policies),
        tokens_compared=compared,
        tokens_differing=differing,
        acceptance_length=lengths,
        divergences=tuple(divergences),
        ties=sum(divergence.tie for divergence in divergences),
        notes=beginnings.notes,
        finite=all(bool(np.isfinite(engine.target_logits(ids)).all()) for _, ids in beginnings.ids[:1]),
        draft=draft or engine.manifest.method,
        batch=batch,
        acceptance_tolerance=acceptance_tolerance,
    )


def fitted(
    prompts: Sequence[Prompt], encode: Callable[[str], Sequence[int]], max_tokens: int, max_seq_len: int
) -> Prefixes:
    """Cut prompts so that each and its new tokens are at most ``max_seq_len``.

    What is generated is cut first, to half of that.
    """
    most = max(min(max_tokens, max_seq_len // 2), 1)
    room = max(max_seq_len - most, 1)
    whole = [(prompt.id, tuple(encode(prompt.text))) for prompt in prompts]
    longer = sum(len(ids) > room for _, ids in whole)
    notes = []
    if most < max_tokens:
        notes.append(f"{most} tokens instead of {max_tokens} after each prompt: the engine holds {max_seq_len}")
    if longer:
        notes.append(f"{longer} of {len(whole)} prompts were cut to {room} tokens: the engine holds {max_seq_len}")
    return Prefixes(tuple((name, ids[:room]) for name, ids in whole), most, tuple(notes))


def is_tie(engine: Engine, ids: Sequence[int], token: int, params: SamplingParams) -> bool:
    """Whether plain decoding gives ``token`` after ``ids``, with the random numbers of ``params``, in some windows."""
    for steps in _STEPS[: len(ids)]:
        beginning, rest = tuple(ids[: len(ids) - steps]), tuple(ids[len(ids) - steps :])
        if not beginning:
            break
        output = engine.generate([beginning], replace(params, max_tokens=steps + 1), num_speculative_tokens=0)[0]
        if tuple(output.token_ids) == (*rest, token):
            return True
    return False


def _groups(count: int, most: int) -> list[slice]:
    """Slices of 1, 2, .. ``most`` and again 1 until there are ``count``."""
    groups: list[slice] = []
    first = 0
    while first < count:
        last = min(first + 1 + len(groups) % most, count)
        groups.append(slice(first, last))
        first = last
    return groups


def _generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    k: int,
    draft: str | None = None,
) -> Sequence[RequestOutput]:
    return engine.generate(prompts, params, num_speculative_tokens=k, draft=draft)


def _compared(expected: Sequence[int], speculative: Sequence[int]) -> tuple[int, list[int]]:
    """How many positions two outputs have, and those at which they are not the same, as where a token is missing."""
    longest = max(len(expected), len(speculative))
    return longest, [i for i in range(longest) if tuple(expected[i : i + 1]) != tuple(speculative[i : i + 1])]


def _parts_at_a_tie(engine: Engine, position: int, params: SamplingParams, expected: Any, output: Any) -> bool:
    if position >= len(output.token_ids):
        return False
    before = (*expected.prompt_token_ids, *expected.token_ids[:position])
    return is_tie(engine, before, output.token_ids[position], params)


def _divergence(
    engine: Engine, prompt: str, policy: str, k: int, position: int, expected: Any, changed: Any, *, tie: bool
) -> Divergence:
    """The two tokens at ``position`` and how far apart the target's own logits hold them."""
    logits = engine.target_logits([*expected.prompt_token_ids, *expected.token_ids[:position]])[-1]
    plain, speculative = (
        output.token_ids[position] if position < len(output.token_ids) else None for output in (expected, changed)
    )
    both = plain is not None and speculative is not None
    margin = float(abs(logits[plain] - logits[speculative])) if both else 0.0
    return Divergence(prompt, policy, k, position, plain, speculative, margin, tie)
