"""Choose K, the drafts per round, by measuring: the K that decodes most tokens per second here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...engines.folder.manifest import Manifest
from ...plugins.errors import BuildError
from ..console.progress import Advance

# (prompt, K) -> (tokens, seconds of decoding); K = 0 is plain decoding
Decode = Callable[[str, int], tuple[int, float]]


@dataclass(frozen=True)
class Rate:
    """Tokens per second of decoding at one K: median and extremes over the sweeps. K = 0 is plain decoding."""

    k: int
    tokens_per_second: float
    slowest: float
    fastest: float


@dataclass(frozen=True)
class Choice:
    """The K that was fastest, and the whole table."""

    k: int
    rates: tuple[Rate, ...]

    @property
    def speedup(self) -> float:
        """Against plain decoding in the same run."""
        by_k = {rate.k: rate.tokens_per_second for rate in self.rates}
        return by_k[self.k] / by_k[0]


def require_finite(
    logits_of: Callable[[str], np.ndarray[Any, Any]], prompts: Sequence[str], manifest: Manifest, engine: Path
) -> None:
    """Raise ``BuildError`` for a target whose logits after a prompt (``[len, V]``) are not all numbers.

    Whatever K it is given, it would be fast and say nothing.
    """
    bad = [prompt for prompt in prompts if not np.isfinite(logits_of(prompt)).all()]
    if not bad:
        return
    kinds = set(manifest.precision.values())
    if kinds == {"fp32"}:
        why, fix = "fp32 has room for all numbers that a model computes with", "download the checkpoint again"
    else:
        why = f"the weights overflow in this precision, {manifest.precision['recipe']}"
        wider = ["--precision bf16, whose numbers reach as far as those of fp32"]
        wider = wider if manifest.backend.gpus and "bf16" not in kinds else []
        fix = f"build with {', or with '.join([*wider, '--backend onnxruntime --precision fp32'])}"
    raise BuildError(
        f"{engine} would not work: its target's logits are not finite after {len(bad)} of {len(prompts)} prompts",
        why=why,
        fix=fix,
    )


def choose_k(
    decode: Decode,
    prompts: Sequence[str],
    depth: int,
    *,
    sweeps: int = 3,
    seconds: float = 30.0,
    advance: Advance = lambda _: None,
) -> Choice:
    """Measure K = 0..``depth``, in turn on each prompt, so that a slow moment of the machine falls on all of them.

    Stops early, after a whole sweep of one prompt, when ``seconds`` are spent.
    """
    everyone = range(depth + 1)
    measured: dict[int, list[float]] = {k: [] for k in everyone}
    for k in (0, depth):  # first calls allocate
        decode(prompts[0], k)
    started = time.monotonic()
    for turn in range(sweeps * len(prompts)):
        rotation = turn % (depth + 1)
        for k in (*everyone[rotation:], *everyone[:rotation]):
            tokens, elapsed = decode(prompts[turn % len(prompts)], k)
            measured[k].append(tokens / max(elapsed, 1e-9))
        advance(1)
        if time.monotonic() - started > seconds:
            break
    rates = tuple(Rate(k, statistics.median(r), min(r), max(r)) for k, r in measured.items())
    best = max(rates[1:], key=lambda rate: rate.tokens_per_second)
    return Choice(best.k, rates)
