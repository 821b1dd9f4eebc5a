"""AcceptPrefix draws exactly from the target's processed distribution, for any drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peagle.plugins.ops.accept_prefix.reference import race_noise
from tests.plugins.plugin_cases import POLICIES, Arrays, could_draw, inputs_of, processed

OP = "AcceptPrefix"
SAMPLED = {name: policy for name, policy in POLICIES.items() if policy[0] > 0}
LOGITS = np.array([0.3, 2.0, -1.0, 0.9, 2.0, -4.0, 1.4, 0.9, 0.1, -np.inf, 1.1, -0.5], np.float32)
NEXT = np.array([1.0, -1.0, 0.5, 0.5, 2.5, 0.0, -2.0, 1.5, 1.5, 0.2, 0.7, -np.inf], np.float32)


def many_rows(policy: tuple[float, int, float, float], drafts: Any, uniform: Any) -> Arrays:
    """One row per draft: the same two columns of logits, each row with its own draft [N] and uniforms [N, 2]."""
    rows = len(drafts)
    temperature, top_k, top_p, min_p = policy
    return {
        "logits": np.broadcast_to(np.stack([LOGITS, NEXT]), (rows, 2, len(LOGITS))).copy(),
        "input_ids": np.stack([np.zeros(rows, np.int64), drafts], axis=1),
        "window_len": np.full(rows, 2, np.int32),
        "draft_len": np.ones(rows, np.int32),
        "forced_next": np.full(rows, -1),
        "uniform": uniform.astype(np.float32),
        "temperature": np.full(rows, temperature, np.float32),
        "top_k": np.full(rows, top_k, np.int32),
        "top_p": np.full(rows, top_p, np.float32),
        "min_p": np.full(rows, min_p, np.float32),
        "tolerance": np.zeros(rows, np.float32),
    }


def chi_square(counts: Any, p: Any) -> float:
    """Pearson's statistic of counts against p; a token that p rules out must not occur."""
    expected = p * counts.sum()
    assert (counts[p == 0] == 0).all()
    return float((((counts - expected)[p > 0]) ** 2 / expected[p > 0]).sum())


def chi_square_limit(degrees: int) -> float:
    """The value that a true sample exceeds once in 1000 times (Wilson and Hilferty's approximation)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.09 * np.sqrt(2 / (9 * degrees))) ** 3 if degrees else 1e-9


@pytest.mark.parametrize("policy", SAMPLED.values(), ids=SAMPLED.keys())
def test_the_first_emitted_token_follows_p(run_body: Any, policy: tuple[float, int, float, float]) -> None:
    rows = 20_000
    uniform = np.random.default_rng(1).random((rows, 2))
    drafts = np.arange(rows) * 7 % len(LOGITS)
    tokens, _ = run_body(OP, inputs_of(OP, many_rows(policy, drafts, uniform)))
    p = processed(LOGITS, *policy)
    assert chi_square(np.bincount(tokens[:, 0], minlength=len(p)), p) < chi_square_limit(np.count_nonzero(p) - 1)


def test_two_positions_draw_independently(run_body: Any) -> None:
    """Pairs of first and second tokens follow the product of their distributions."""
    rows = 40_000
    tokens, num_tokens = run_body(
        OP, inputs_of(OP, many_rows(SAMPLED["plain"], np.full(rows, 1), np.random.default_rng(2).random((rows, 2))))
    )
    p = processed(NEXT, *SAMPLED["plain"])
    second = np.bincount(tokens[num_tokens == 2, 1], minlength=len(p))
    assert chi_square(second, p) < chi_square_limit(np.count_nonzero(p) - 1)


def test_neighbouring_uniforms_draw_independently(run_body: Any) -> None:
    """The number is a key, not a place in a distribution function: keys in a row must scatter over the tokens."""
    rows = 20_000
    uniform = np.stack([(1000 + np.arange(rows)) * 2.0**-24] * 2, axis=1)
    tokens, _ = run_body(OP, inputs_of(OP, many_rows(SAMPLED["plain"], np.zeros(rows, np.int64), uniform)))
    p = processed(LOGITS, *SAMPLED["plain"])
    assert chi_square(np.bincount(tokens[:, 0], minlength=len(p)), p) < chi_square_limit(np.count_nonzero(p) - 1)
    pairs = np.bincount(tokens[:-1, 0] * len(p) + tokens[1:, 0], minlength=len(p) ** 2)
    product = np.outer(p, p).reshape(-1)
    assert chi_square(pairs, product) < chi_square_limit(np.count_nonzero(product) - 1)


def test_the_noise_is_gumbel_for_a_real_sized_vocabulary() -> None:
    """Its distribution function, at every percentile, over 200 000 tokens of one key."""
    noise = np.sort(race_noise(0.37, 200_000))
    expected = np.exp(-np.exp(-noise))
    assert np.abs(expected - (np.arange(len(noise)) + 0.5) / len(noise)).max() < 1.95 / np.sqrt(len(noise))  # KS, 0.1 %


@pytest.mark.parametrize("scale", [1e-6, 1e-5])
def test_the_last_bits_of_the_logits_hardly_ever_change_a_draw(run_body: Any, scale: float) -> None:
    """What makes text the same with speculation on and off: windows of other widths round otherwise."""
    rng = np.random.default_rng(4)
    rows, vocab = 400, 3000
    batch = many_rows(SAMPLED["plain"], np.zeros(rows, np.int64), rng.random((rows, 2)))
    logits = (rng.normal(size=(rows, 2, vocab)) * 3).astype(np.float32)
    noisy = (logits + rng.normal(size=logits.shape) * scale).astype(np.float32)
    first, second = (run_body(OP, inputs_of(OP, batch | {"logits": x}))[0][:, 0] for x in (logits, noisy))
    assert (first != second).mean() <= 1 / rows


@pytest.mark.parametrize("policy", [SAMPLED["plain"], SAMPLED["all"]], ids=["plain", "all"])
@pytest.mark.parametrize("draft", [1, 3, 5, 9])
def test_acceptance_rate_equals_draft_probability(
    run_body: Any, draft: int, policy: tuple[float, int, float, float]
) -> None:
    """Rejection sampling of a one-hot draft: accepted with p(d), else the rest of p; the next token has its own p."""
    rows = 8192
    uniform = np.random.default_rng(7).random((rows, 2))
    tokens, num_tokens = run_body(OP, inputs_of(OP, many_rows(policy, np.full(rows, draft), uniform)))
    p, p_next = processed(LOGITS, *policy), processed(NEXT, *policy)
    accepted = num_tokens == 2
    np.testing.assert_array_equal(accepted, tokens[:, 0] == draft)
    assert abs(accepted.mean() - p[draft]) < 4 * np.sqrt(p[draft] * (1 - p[draft]) / rows) + 1e-9
    first = np.bincount(tokens[:, 0], minlength=len(p))
    assert chi_square(first, p) < chi_square_limit(np.count_nonzero(p) - 1)
    if accepted.any():
        second = np.bincount(tokens[accepted, 1], minlength=len(p))
        assert chi_square(second, p_next) < chi_square_limit(np.count_nonzero(p_next) - 1)


@pytest.mark.parametrize("policy", SAMPLED.values(), ids=SAMPLED.keys())
def test_token_depends_on_the_uniform_not_the_draft(run_body: Any, policy: tuple[float, int, float, float]) -> None:
    uniform = np.repeat(np.random.default_rng(3).random((40, 2)), len(LOGITS), axis=0)
    drafts = np.tile(np.arange(len(LOGITS)), 40)
    tokens, _ = run_body(OP, inputs_of(OP, many_rows(policy, drafts, uniform)))
    per_uniform = tokens[:, 0].reshape(40, len(LOGITS))
    assert (per_uniform == per_uniform[:, :1]).all()


@pytest.mark.parametrize("policy", SAMPLED.values(), ids=SAMPLED.keys())
def test_extreme_uniforms_stay_inside_the_kept_tokens(run_body: Any, policy: tuple[float, int, float, float]) -> None:
    uniform = np.repeat(np.array([[0.0], [1 - 2**-24], [1.0], [-1.0], [2.0]]), 2, axis=1)
    tokens, _ = run_body(OP, inputs_of(OP, many_rows(policy, np.full(5, 9), uniform)))
    assert set(tokens[:, 0]) <= set(np.flatnonzero(processed(LOGITS, *policy)))
    assert tokens[1, 0] == tokens[2, 0] == tokens[4, 0]
    assert tokens[0, 0] == tokens[3, 0]


def test_full_vocabulary_tokens_match_the_uniform(run_body: Any) -> None:
    """200 000 tokens, top-k and top-p, float16 logits: every drawn token is one that the uniform allows."""
    rng = np.random.default_rng(0)
    batch = many_rows((0.8, 50, 0.9, 0.0), np.zeros(4, np.int64), rng.random((4, 2)))
    batch["logits"] = (rng.normal(size=(4, 2, 200_000)) * 4).astype(np.float16)
    batch["top_k"][2:] = 0
    batch["top_p"][3] = 1
    tokens, _ = run_body(OP, inputs_of(OP, batch))
    for b in range(4):
        assert could_draw(batch, b, 0, tokens[b, 0])
