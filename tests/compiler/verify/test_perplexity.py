"""Perplexity: what it is of known distributions, and that no number that is none slips through."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.verify.perplexity import Perplexity, log_softmax, perplexity


@settings(max_examples=20, deadline=None)
@given(vocab=st.integers(2, 40), shift=st.floats(-50, 50), lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4))
def test_knowing_nothing_costs_the_size_of_the_vocabulary(vocab: int, shift: float, lengths: list[int]) -> None:
    texts = [[i % vocab for i in range(length)] for length in lengths]
    found = perplexity(lambda ids: np.full((len(ids), vocab), shift, np.float32), texts)
    assert found.value == pytest.approx(vocab, rel=1e-9)
    assert found.tokens == sum(lengths) - len(lengths)


def test_knowing_everything_costs_nothing() -> None:
    def certain(ids: list[int]) -> np.ndarray:
        return np.eye(8, dtype=np.float32)[[*ids[1:], 0]] * 100

    assert perplexity(certain, [[1, 5, 2], [3, 3]]).value == pytest.approx(1.0)


def test_it_is_what_torch_says() -> None:
    import torch

    rng = np.random.default_rng(0)
    logits, ids = rng.normal(size=(7, 11)).astype(np.float32), [1, 4, 2, 10, 0, 3, 3]
    wanted = torch.nn.functional.cross_entropy(torch.from_numpy(logits[:-1]), torch.tensor(ids[1:]))
    assert perplexity(lambda _: logits, [ids]).mean_nll == pytest.approx(float(wanted), rel=1e-5)


def test_a_text_of_one_token_predicts_nothing_and_nothing_is_not_a_number() -> None:
    assert math.isnan(perplexity(lambda ids: np.zeros((len(ids), 3), np.float32), [[1], [2]]).value)
    assert math.isnan(perplexity(lambda ids: np.full((len(ids), 3), np.nan, np.float32), [[1, 2]]).value)


def test_what_overflows_is_infinite() -> None:
    assert Perplexity(1e6, 3).value == math.inf


def test_large_logits_do_not_overflow() -> None:
    assert np.all(np.isfinite(log_softmax(np.array([[1e30, 0.0], [-1e30, 1e30]], np.float32))))
