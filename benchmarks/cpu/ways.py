"""Ways to decode a prompt: this project's engines and the peers; in a turn, all decode the same prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from peers.process import Peer

from peagle.engines import Engine, SamplingParams

_FIRST = 2  # tokens of the shorter of two runs; their difference contains decoding only


@dataclass(frozen=True)
class Decoded:
    """Tokens per second after the first token, and tokens per round if there were drafts (otherwise 0)."""

    speed: float
    per_round: float = 0.0


Way = Callable[[Sequence[int], int], Decoded]


def ours(engine: Engine, k: int = 0, draft: str | None = None, *, temperature: float = 0.0, seed: int = 7) -> Way:
    """Return this runtime with K drafts per round, from the head or as ``draft`` names."""

    def decode(prompt: Sequence[int], count: int) -> Decoded:
        params = SamplingParams(max_tokens=count, ignore_eos=True, temperature=temperature, seed=seed)
        (output,) = engine.generate([prompt], params, num_speculative_tokens=k, draft=draft if k else None)
        tokens_per_round = output.acceptance.tokens_per_round if k else 0.0
        return Decoded((len(output.token_ids) - 1) / output.decode_seconds, tokens_per_round)

    return decode


def theirs(peer: Peer) -> Way:
    """Return a peer's runtime with greedy decoding."""

    def decode(prompt: Sequence[int], count: int) -> Decoded:
        tokens, seconds = peer.generate(prompt, count)
        return Decoded((len(tokens) - 1) / seconds)

    return decode


def together(engine: Engine, k: int = 0) -> Callable[[Sequence[Sequence[int]], int], float]:
    """Return the total tokens per second of several prompts that are decoded together.

    The difference of a longer and a shorter run is counted, so that prompt processing cancels out.
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
    """Decode the prompt in every way, starting with another one each turn; return speeds and tokens per round."""
    names = [*ways]
    at = first % len(names)
    decoded = {name: ways[name](prompt, count) for name in (*names[at:], *names[:at])}
    return {n: d.speed for n, d in decoded.items()}, {n: d.per_round for n, d in decoded.items() if d.per_round}
