"""Ways to decode a prompt: ours on an engine, and a peer's; a turn lets all of them decode the same one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from peers.process import Peer

from peagle.engines import Engine, SamplingParams

_FIRST = 2  # tokens of the shorter of two runs, whose difference is decoding alone


@dataclass(frozen=True)
class Decoded:
    """Tokens by the second after the first one, and the tokens a round where there were drafts (else 0)."""

    speed: float
    per_round: float = 0.0


Way = Callable[[Sequence[int], int], Decoded]


def ours(engine: Engine, k: int = 0, draft: str | None = None, *, temperature: float = 0.0, seed: int = 7) -> Way:
    """Our runtime with K drafts a round: the head's, or of ``draft``."""

    def decode(prompt: Sequence[int], count: int) -> Decoded:
        params = SamplingParams(max_tokens=count, ignore_eos=True, temperature=temperature, seed=seed)
        (output,) = engine.generate([prompt], params, num_speculative_tokens=k, draft=draft if k else None)
        tokens_per_round = output.acceptance.tokens_per_round if k else 0.0
        return Decoded((len(output.token_ids) - 1) / output.decode_seconds, tokens_per_round)

    return decode


def theirs(peer: Peer) -> Way:
    """A peer's runtime, greedily."""

    def decode(prompt: Sequence[int], count: int) -> Decoded:
        tokens, seconds = peer.generate(prompt, count)
        return Decoded((len(tokens) - 1) / seconds)

    return decode


def together(engine: Engine, k: int = 0) -> Callable[[Sequence[Sequence[int]], int], float]:
    """Tokens by the second of several prompts that are decoded at once, all of them added up.

    The passes over the prompts are in both of two runs, one longer than the other, whose difference is counted.
    """

    def seconds(prompts: Sequence[Sequence[int]], count: int) -> float:
        began = time.perf_counter()
        engine.generate(prompts, SamplingParams(max_tokens=count, ignore_eos=True), num_speculative_tokens=k)
        return time.perf_counter() - began

    def decode(prompts: Sequence[Sequence[int]], count: int) -> float:
        short = seconds(prompts, _FIRST)
        return len(prompts) * (count - _FIRST) / max(seconds(prompts, count) - short, 1e-9)

    return decode


def turn(
    ways: Mapping[str, Way], prompt: Sequence[int], count: int, first: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Let every way decode the prompt, beginning with another one each turn: speeds, and tokens a round."""
    names = [*ways]
    at = first % len(names)
    decoded = {name: ways[name](prompt, count) for name in (*names[at:], *names[:at])}
    return {n: d.speed for n, d in decoded.items()}, {n: d.per_round for n, d in decoded.items() if d.per_round}
