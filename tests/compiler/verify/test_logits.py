"""Two models on the same texts: metrics of equal models, of known distributions, and in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from peagle.compiler.verify.logits import (
    LayerError,
    LogitsComparison,
    LogitsOf,
    LogitsTally,
    Perplexity,
    compare_layers,
    compare_logits,
    divergence,
    log_softmax,
    worst_layer,
)

LOGITS = arrays(np.float32, (4, 6), elements=st.floats(-20, 20, width=32))


@settings(max_examples=30, deadline=None)
@given(LOGITS, LOGITS, st.floats(-5, 5, width=32))
def test_divergence_is_zero_only_for_equal_distributions(one: np.ndarray, other: np.ndarray, shift: float) -> None:
    assert np.all(divergence(log_softmax(one), log_softmax(one + np.float32(shift))) < 1e-9)
    found = divergence(log_softmax(one), log_softmax(other))
    assert np.all(found >= 0)
    apart = abs((one - one.mean(-1, keepdims=True)) - (other - other.mean(-1, keepdims=True))).max(-1)
    assert np.all(found[apart > 2] > 0)


def test_divergence_matches_torch() -> None:
    import torch
    from torch.nn import functional

    one, other = np.random.default_rng(1).normal(size=(2, 5, 9)).astype(np.float32)
    wanted = functional.kl_div(
        torch.from_numpy(other).log_softmax(-1),
        torch.from_numpy(one).log_softmax(-1),
        reduction="none",
        log_target=True,
    )
    np.testing.assert_allclose(divergence(log_softmax(one), log_softmax(other)), wanted.sum(-1).numpy(), rtol=1e-4)


def test_a_model_compared_with_itself() -> None:
    table = np.random.default_rng(2).normal(size=(12, 12)).astype(np.float32)
    found = compare_logits(lambda ids: table[list(ids)], lambda ids: table[list(ids)], [(1, 2, 3), (4, 5)])
    assert (found.kl_max, found.top1_agreement, found.perplexity_increase) == (0, 1, 0)
    assert (found.texts, found.tokens) == (2, 5)


def _alone(logits_of: LogitsOf, texts: Sequence[Sequence[int]]) -> LogitsComparison:
    return compare_logits(logits_of, logits_of, texts)


def test_texts_of_any_length_are_measured_token_by_token() -> None:
    """However many rows are looked at together: 150 are not a whole number of them."""
    rng = np.random.default_rng(4)
    ids = rng.integers(0, 7, 150).tolist()
    one, other = rng.normal(size=(2, 150, 7)).astype(np.float32)
    tally = LogitsTally()
    tally.add(one, other, ids)
    found = tally.comparison()
    every = divergence(log_softmax(one), log_softmax(other))
    assert (found.kl_mean, found.kl_max) == (pytest.approx(every.mean()), every.max())
    assert found.top1_agreement == np.mean(one.argmax(-1) == other.argmax(-1))
    surprises = [-log_softmax(logits)[np.arange(149), ids[1:]] for logits in (one, other)]
    assert found.perplexity_candidate == pytest.approx(math.exp(surprises[1].mean()))
    ratio, error = math.exp(np.diff(surprises, axis=0).mean()), np.diff(surprises, axis=0).std(ddof=1) / math.sqrt(149)
    assert found.perplexity_increase == pytest.approx(ratio - 1)
    assert found.perplexity_error == pytest.approx(ratio * error)


def test_the_error_of_layers_is_relative_and_names_the_layer_that_adds_it() -> None:
    rng = np.random.default_rng(3)
    streams = rng.normal(size=(5, 4, 8))
    scale = np.array([0, 0, 0.1, 0.11])[None, :, None]
    found = compare_layers(lambda _: streams, lambda _: streams * (1 + scale), [(1, 2)], lambda _: None)
    assert [each.error for each in found] == pytest.approx([0, 0, 0.1, 0.11])
    assert worst_layer(found) == 1
    assert worst_layer((LayerError(0, 0.0),)) == 0


@settings(max_examples=20, deadline=None)
@given(vocab=st.integers(2, 40), shift=st.floats(-50, 50), lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4))
def test_uniform_prediction_costs_the_vocabulary_size(vocab: int, shift: float, lengths: list[int]) -> None:
    texts = [[i % vocab for i in range(length)] for length in lengths]
    found = _alone(lambda ids: np.full((len(ids), vocab), shift, np.float32), texts)
    assert found.perplexity_reference == pytest.approx(vocab, rel=1e-9)
    assert found.tokens == sum(lengths)


def test_perfect_prediction_costs_nothing() -> None:
    def certain(ids: Sequence[int]) -> np.ndarray:
        return np.eye(8, dtype=np.float32)[[*ids[1:], 0]] * 100

    assert _alone(certain, [[1, 5, 2], [3, 3]]).perplexity_reference == pytest.approx(1.0)


def test_perplexity_matches_torch() -> None:
    import torch

    rng = np.random.default_rng(0)
    logits, ids = rng.normal(size=(7, 11)).astype(np.float32), [1, 4, 2, 10, 0, 3, 3]
    wanted = torch.nn.functional.cross_entropy(torch.from_numpy(logits[:-1]), torch.tensor(ids[1:]))
    assert math.log(_alone(lambda _: logits, [ids]).perplexity_reference) == pytest.approx(float(wanted), rel=1e-5)


def test_single_token_text_predicts_nothing_without_nan() -> None:
    assert math.isnan(_alone(lambda ids: np.zeros((len(ids), 3), np.float32), [[1], [2]]).perplexity_reference)
    assert math.isnan(_alone(lambda ids: np.full((len(ids), 3), np.nan, np.float32), [[1, 2]]).perplexity_reference)


def test_overflow_gives_infinity() -> None:
    assert Perplexity(1e6, 3).value == math.inf


def test_large_logits_do_not_overflow() -> None:
    assert np.all(np.isfinite(log_softmax(np.array([[1e30, 0.0], [-1e30, 1e30]], np.float32))))
