"""Speculation changes no token: any pair, prompts up to the end of the cache, any policy, batch and K."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from peagle.engines import Engine, SamplingParams
from tests.fixtures.attacks import Size

_STOPS = ("e", "\n", "a", "()", " ", "return", "zzzzzz", "self.")
_TEXTS = ("def f(", "import os\n", "class A:\n", "x = [1, 2", "# é中😀 ", "if __name__", "return", '"""Docstring')


def chosen_by_the_host(rng: random.Random) -> dict[str, Any]:
    """Penalties, biases and bans; for two of three requests none."""
    if rng.random() < 2 / 3:
        return {}
    fields = {
        "presence_penalty": rng.uniform(-2, 2), "frequency_penalty": rng.uniform(-2, 2),
        "repetition_penalty": rng.uniform(0.5, 2), "logit_bias": {rng.randint(0, 90): rng.uniform(-100, 100)},
        "bad_token_ids": rng.sample(range(90), 5), "min_tokens": 1, "logprobs": rng.randint(0, 5),
    }  # fmt: skip
    return dict(rng.sample(sorted(fields.items()), rng.randint(1, 3)))


def policy(rng: random.Random, most: int) -> SamplingParams:
    """A policy of any kind; half of them are greedy."""
    fields: dict[str, Any] = {"max_tokens": rng.choice((1, 2, 7, 20, 40, most)), "ignore_eos": rng.random() < 0.6}
    fields |= chosen_by_the_host(rng)
    if rng.random() < 0.3:
        fields["stop"] = tuple(rng.sample(_STOPS, rng.randint(1, 2)))
    if rng.random() < 0.5:
        return SamplingParams(**fields)
    fields["temperature"] = rng.choice((1e-3, 0.3, 0.7, 1.0, 1.7, 5.0, 100.0, rng.uniform(0.1, 2)))
    fields["seed"] = rng.choice((0, 1, -1, 2**63 - 1, 2**64, rng.getrandbits(64)))
    if rng.random() < 0.4:
        fields["top_k"] = rng.choice((1, 2, 5, 40, 10**6))
    if rng.random() < 0.4:
        fields["top_p"] = rng.choice((1e-6, 0.1, 0.5, 0.9, 0.999))
    if rng.random() < 0.3:
        fields["min_p"] = rng.choice((1e-4, 0.05, 0.5, 1.0))
    return SamplingParams(**fields)


def prompt(rng: random.Random, engine: Engine) -> str | list[int]:
    """A text, or ids of any length that the cache has room for, more often at its ends and at those of chunks."""
    if rng.random() < 0.3 and engine.max_seq_len > 500:
        return rng.choice(_TEXTS) * rng.randint(1, 3)
    longest = engine.max_seq_len - 1
    edges = (1, 2, 127, 128, 129, 255, 256, 257, longest - 9, longest - 1, longest)
    length = rng.choice(edges) if rng.random() < 0.35 else rng.randint(1, 60)
    ids = engine.manifest.shapes.vocab_size - 1
    alphabet = [rng.randint(0, ids) for _ in range(rng.choice((1, 3, 300)))] + [0, ids] * (rng.random() < 0.1)
    return [rng.choice(alphabet) for _ in range(max(1, min(length, longest)))]


def compare(engines: Sequence[Engine], seed: int, number: int) -> None:
    """One batch with K drafts, the drafter's or looked up, and without any; they must agree in ids, text and reason."""
    rng = random.Random(f"{seed}/{number}")
    engine = rng.choice(engines)
    prompts = [prompt(rng, engine) for _ in range(rng.choice((1, 1, 2, 3, 5)))]
    most = engine.max_seq_len if rng.random() < 0.1 else 60
    params = [policy(rng, most) for _ in prompts]
    k = rng.randint(1, engine.manifest.speculation.max_num_speculative_tokens)
    draft = rng.choice((None, None, "ngram"))
    plain, fast = (
        [(each.token_ids, each.text, each.finish_reason) for each in outputs]
        for outputs in (engine.generate(prompts, params, num_speculative_tokens=depth, draft=draft) for depth in (0, k))
    )
    differing = [
        (given, policy_, k, draft)
        for one, other, given, policy_ in zip(plain, fast, prompts, params, strict=True)
        if one != other
    ]
    assert not differing, f"--seed {seed} --first {number} --attacks 1: {engine.folder}: {str(differing[0])[:500]}"


@pytest.fixture(scope="module")
def engines(request: pytest.FixtureRequest) -> list[Engine]:
    """The demo engine and that of the tests' dense pair."""
    folders = [request.getfixturevalue(name) for name in ("demo_engine", "tiny_folder")]
    return [Engine.load(folder, max_batch_size=3, threads=1) for folder in folders]


def test_speculation_changes_no_token_of_random_requests(engines: list[Engine]) -> None:
    for number in range(12):
        compare(engines, 0, number)


@pytest.mark.slow
def test_speculation_changes_no_token_of_many_random_requests(engines: list[Engine], attack_size: Size) -> None:
    for number in attack_size.numbers:
        compare(engines, attack_size.seed, number)
