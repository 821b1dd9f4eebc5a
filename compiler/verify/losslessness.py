"""Losslessness: neither speculation nor batching changes a token, except at ties.

A tie is a changed token that plain decoding can produce as well. The width of a pass determines the order of its sums,
which affects the last bits; rounding to 16 bits or to quantized types amplifies the difference. If two logits are very
close, the difference decides between two tokens. Plain decoding with the same tokens in passes of other widths then
gives either token, so nothing was lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bundled.prompts import Prompt
from ..console.progress import Advance, Progress

if TYPE_CHECKING:
    from ...engines import Engine, RequestOutput, SamplingParams

POLICIES = {"greedy": 0.0, "temperature 0.8": 0.8}  # temperatures
_WIDTHS = (1, 2, 3, 5, 8, 17, 32, 64)  # of windows whose last token is compared
_STEPS = (0, 1, 2, 3, 5, 8)  # last tokens to decode one by one; one pass computes all tokens before them


@dataclass(frozen=True)
class Divergence:
    """The first token of one prompt that speculation changed.

    ``margin``: difference of the two tokens' logits. ``tie``: plain decoding in passes of other widths gives the
    changed token as well.
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
    """Comparison of the tokens with speculation and without.

    ``ties``: number of texts that diverge at a tie; they are compared up to that token. ``notes``: prompts and outputs
    that were cut to the engine's length limit. ``finite``: all logits of the first prompt are finite. ``draft``: the
    draft method. ``batch``: largest number of concurrent prompts; the reference is always generated one prompt at a
    time. ``drafts_accepted``: number of drafts that were accepted in the compared texts. ``plain_sha256``: hash of all
    tokens of the reference. ``width_difference``: largest difference between the logits of a token in windows of
    different widths, relative to the largest logit of the first prompt; not judged, but where it is 0, no token can
    depend on drafts; None: not measured. With an ``acceptance_tolerance`` above 0, differences are counted but not
    judged.
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
    drafts_accepted: int = 0
    plain_sha256: str = ""
    width_difference: float | None = None

    @property
    def is_lossy(self) -> bool:
        """True if accepted drafts may differ from the target's tokens."""
        return self.acceptance_tolerance > 0

    @property
    def passed(self) -> bool:
        """True if tokens were compared, none differ (unless drafts are lossy), and the logits are finite."""
        return self.finite and self.tokens_compared > 0 and (self.is_lossy or not self.tokens_differing)

    def as_json(self) -> dict[str, Any]:
        """Return the record for ``verify.json``; ``passed`` is null for lossy drafts that did not fail."""
        passed = None if self.is_lossy and self.passed else self.passed
        return {"passed": passed, "lossy": self.is_lossy, **asdict(self)}


@dataclass(frozen=True)
class Prefixes:
    """Named token ids of the prompts, and the number of tokens to generate after each. ``notes``: what was cut."""

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
    first_seed: int = 0,
    on_compared: Advance = lambda tokens: None,
) -> Losslessness:
    """Generate greedily and with seeded sampling, each with and without drafts, and compare the tokens.

    The reference runs one prompt at a time without drafts. The other runs use batches of 1, 2, .. ``batch``, 1, ..
    prompts, for which the engine must have slots. If ``batch`` is above 1, K = 0 is compared as well. ``draft``: a
    draft method to use instead of the engine's. ``exact``: count ties as differences, for FP32 and for ONNX Runtime,
    where passes of all widths agree bit for bit. ``acceptance_tolerance`` applies to the compared runs; above 0 they
    are lossy, and ties are not identified. ``first_seed``: the seed of the first prompt; the others follow.
    ``on_compared`` is called with numbers of tokens that were compared.
    """
    from ...engines import SamplingParams

    prefixes = fitted(prompts, engine.tokenizer.encode, max_tokens, engine.max_seq_len)
    greedy = SamplingParams(max_tokens=prefixes.max_tokens, ignore_eos=True)
    policies = {name: replace(greedy, temperature=temperature) for name, temperature in POLICIES.items()}
    compared = differing = drafts_accepted = 0
    digest = hashlib.sha256()
    lengths: dict[str, float] = {}
    divergences: list[Divergence] = []
    tried = (0, *depths) if batch > 1 else depths
    groups = _groups(len(prompts), batch)
    with progress.step("compare speculation on and off", len(policies) * (1 + len(tried)) * len(prompts)) as advance:
        for name, policy in policies.items():
            params = [replace(policy, seed=seed) for seed in range(first_seed, first_seed + len(prompts))]
            plain: list[RequestOutput] = []
            for (_, ids), seeded in zip(prefixes.ids, params, strict=True):
                plain += _generate(engine, [ids], [seeded], 0)
                advance(1)
            digest.update(repr([output.token_ids for output in plain]).encode())
            for k in tried:
                rounds = accepted = 0
                outputs: list[RequestOutput] = []
                for group in groups:
                    together = [ids for _, ids in prefixes.ids[group]]
                    lossy = [replace(each, acceptance_tolerance=acceptance_tolerance) for each in params[group]]
                    outputs += _generate(engine, together, lossy, k, draft if k else None)
                    advance(len(together))
                for (prompt, _), seeded, expected, output in zip(prefixes.ids, params, plain, outputs, strict=True):
                    rounds += output.acceptance.rounds
                    accepted += output.acceptance.accepted
                    count, wrong = _differences(expected.token_ids, output.token_ids)
                    if wrong:
                        judged = not exact and not acceptance_tolerance
                        tie = judged and _is_divergence_a_tie(engine, wrong[0], seeded, expected, output)
                        count, wrong = (wrong[0], wrong[:1]) if tie else (count, wrong)
                        differing += 0 if tie else len(wrong)
                        divergences.append(_divergence(engine, prompt, name, k, wrong[0], expected, output, tie=tie))
                    compared += count
                    on_compared(count)
                drafts_accepted += accepted
                if k:
                    lengths[f"{name}, K = {k}"] = round(1 + accepted / max(rounds, 1), 3)
    logits = [(ids, engine.target_logits(ids)) for _, ids in prefixes.ids[:1]]
    return Losslessness(
        prompts=len(prompts),
        max_tokens=prefixes.max_tokens,
        k=tuple(tried),
        policies=tuple(policies),
        tokens_compared=compared,
        tokens_differing=differing,
        acceptance_length=lengths,
        divergences=tuple(divergences),
        ties=sum(divergence.tie for divergence in divergences),
        notes=prefixes.notes,
        finite=all(bool(np.isfinite(each).all()) for _, each in logits),
        draft=draft or engine.manifest.method,
        batch=batch,
        acceptance_tolerance=acceptance_tolerance,
        drafts_accepted=drafts_accepted,
        plain_sha256=digest.hexdigest(),
        width_difference=max((_width_difference(engine, *each) for each in logits), default=None),
    )


def fitted(
    prompts: Sequence[Prompt], encode: Callable[[str], Sequence[int]], max_tokens: int, max_seq_len: int
) -> Prefixes:
    """Truncate prompts so that each fits into ``max_seq_len`` with its new tokens.

    The number of new tokens is reduced first, to at most half of ``max_seq_len``.
    """
    max_new_tokens = max(min(max_tokens, max_seq_len // 2), 1)
    room = max(max_seq_len - max_new_tokens, 1)
    encoded = [(prompt.id, tuple(encode(prompt.text))) for prompt in prompts]
    longer = sum(len(ids) > room for _, ids in encoded)
    notes = []
    if max_new_tokens < max_tokens:
        notes.append(
            f"answers are limited to {max_new_tokens} tokens instead of {max_tokens}: the engine's max_seq_len is "
            f"{max_seq_len}"
        )
    if longer:
        notes.append(
            f"{longer} of {len(encoded)} prompts were truncated to {room} tokens: the engine's max_seq_len is "
            f"{max_seq_len}"
        )
    return Prefixes(tuple((name, ids[:room]) for name, ids in encoded), max_new_tokens, tuple(notes))


def is_tie(engine: Engine, ids: Sequence[int], token: int, params: SamplingParams) -> bool:
    """True if plain decoding with the seed of ``params`` gives ``token`` after ``ids`` for some pass widths."""
    for steps in _STEPS[: len(ids)]:
        prefix, rest = tuple(ids[: len(ids) - steps]), tuple(ids[len(ids) - steps :])
        if not prefix:
            break
        output = engine.generate([prefix], replace(params, max_tokens=steps + 1), num_speculative_tokens=0)[0]
        if tuple(output.token_ids) == (*rest, token):
            return True
    return False


def _width_difference(engine: Engine, ids: Sequence[int], logits: np.ndarray) -> float:
    """Return how far logits f32 [len, V] of ``ids`` are from those of its first tokens alone, by the largest logit."""
    differences = [
        np.abs(engine.target_logits(ids[:width])[-1] - logits[width - 1]).max() for width in _WIDTHS if width < len(ids)
    ]
    return float(np.nan_to_num(max(differences, default=0.0) / np.abs(logits).max()))


def _groups(count: int, size: int) -> list[slice]:
    """Return slices of 1, 2, .. ``size``, 1, 2, .. items that cover ``count`` items."""
    groups: list[slice] = []
    first = 0
    while first < count:
        last = min(first + 1 + len(groups) % size, count)
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


def _differences(expected: Sequence[int], speculative: Sequence[int]) -> tuple[int, list[int]]:
    """Return the length of the longer output and the positions that differ; a missing token counts as different."""
    longest = max(len(expected), len(speculative))
    return longest, [i for i in range(longest) if tuple(expected[i : i + 1]) != tuple(speculative[i : i + 1])]


def _is_divergence_a_tie(engine: Engine, position: int, params: SamplingParams, expected: Any, output: Any) -> bool:
    if position >= len(output.token_ids):
        return False
    before = (*expected.prompt_token_ids, *expected.token_ids[:position])
    return is_tie(engine, before, output.token_ids[position], params)


def _divergence(
    engine: Engine, prompt: str, policy: str, k: int, position: int, expected: Any, changed: Any, *, tie: bool
) -> Divergence:
    """Return the two tokens at ``position`` and the difference of their logits in the target."""
    logits = engine.target_logits([*expected.prompt_token_ids, *expected.token_ids[:position]])[-1]
    plain, speculative = (
        output.token_ids[position] if position < len(output.token_ids) else None for output in (expected, changed)
    )
    both = plain is not None and speculative is not None
    margin = float(abs(logits[plain] - logits[speculative])) if both else 0.0
    return Divergence(prompt, policy, k, position, plain, speculative, margin, tie)
