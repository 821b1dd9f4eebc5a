"""The measures on numbers that were made up: what they are of equal models, and what they never let pass."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.verify.generation import compare_acceptance, compare_tokens
from peagle.compiler.verify.layers import LayerError, compare_layers, most_added
from peagle.compiler.verify.logits import LogitsComparison, compare_logits, divergence
from peagle.compiler.verify.precision import Precision, checks_of
from peagle.compiler.verify.thresholds import LIMITS, Limits

LOGITS = arrays(np.float32, (4, 6), elements=st.floats(-20, 20, width=32))
COMPARED = LogitsComparison(3, 30, 0.01, 0.02, 0.03, 0.99, 10.0, 10.05)
ALLOWED = Limits(0.01, 0.05, 0.03)


@settings(max_examples=30, deadline=None)
@given(LOGITS, LOGITS, st.floats(-5, 5, width=32))
def test_divergence_is_zero_for_the_same_distribution_and_above_it_else(
    one: np.ndarray, other: np.ndarray, shift: float
) -> None:
    assert np.all(divergence(one, one + np.float32(shift)) < 1e-9)
    found = divergence(one, other)
    assert np.all(found >= 0)
    apart = abs((one - one.mean(-1, keepdims=True)) - (other - other.mean(-1, keepdims=True))).max(-1)
    assert np.all(found[apart > 2] > 0)


def test_divergence_is_what_torch_says() -> None:
    import torch
    from torch.nn import functional

    one, other = np.random.default_rng(1).normal(size=(2, 5, 9)).astype(np.float32)
    wanted = functional.kl_div(
        torch.from_numpy(other).log_softmax(-1),
        torch.from_numpy(one).log_softmax(-1),
        reduction="none",
        log_target=True,
    )
    np.testing.assert_allclose(divergence(one, other), wanted.sum(-1).numpy(), rtol=1e-4)


def test_a_model_compared_with_itself() -> None:
    table = np.random.default_rng(2).normal(size=(12, 12)).astype(np.float32)
    found = compare_logits(lambda ids: table[list(ids)], lambda ids: table[list(ids)], [(1, 2, 3), (4, 5)])
    assert (found.kl_max, found.top1_agreement, found.perplexity_increase) == (0, 1, 0)
    assert (found.texts, found.tokens) == (2, 5)


def test_one_logit_that_is_no_number_fails_the_whole() -> None:
    def broken(ids: Sequence[int]) -> np.ndarray:
        logits = np.ones((len(ids), 4), np.float32)
        logits[0, 0] = np.nan
        return logits

    found = compare_logits(lambda ids: np.ones((len(ids), 4), np.float32), broken, [(1, 2, 3)])
    assert math.isnan(found.kl_mean)
    precision = Precision("int8", logits=found, checks=checks_of(ALLOWED, found, None, None))
    assert precision.status == "failed"
    json.dumps(precision.as_json(), allow_nan=False)


def test_what_is_beyond_a_limit_fails_and_says_by_how_much() -> None:
    def status(compared: LogitsComparison) -> Precision:
        return Precision("fp8", checks=checks_of(ALLOWED, compared, None, None))

    assert status(COMPARED).status == "passed"
    dear = status(replace(COMPARED, perplexity_candidate=10.2))
    assert dear.status == "failed"
    assert dear.failures() == ["the increase of perplexity is 0.02, at most 0.01 for fp8"]
    assert status(replace(COMPARED, kl_mean=0.06)).status == "failed"


def test_nothing_measured_is_no_pass() -> None:
    assert Precision("fp8").status == "skipped"
    assert Precision("fp8", skipped="gone", checks=checks_of(ALLOWED, COMPARED, None, None)).status == "skipped"


def outputs(*texts: tuple[Sequence[int], int, int]) -> list[Any]:
    """Each: its tokens, rounds, accepted drafts."""
    return [
        SimpleNamespace(token_ids=tuple(ids), acceptance=SimpleNamespace(rounds=rounds, accepted=accepted))
        for ids, rounds, accepted in texts
    ]


def test_greedy_tokens_are_compared_by_position() -> None:
    wide = outputs(([1, 2, 3, 4], 2, 2), ([5, 6], 1, 1))
    found = compare_tokens(wide, outputs(([1, 2, 9, 4], 2, 2), ([5, 6], 1, 1)))
    assert found.first_difference == (2, None)
    assert (found.equal_share, found.identical, found.tokens) == (5 / 6, 1, 6)
    shorter = compare_tokens(wide, outputs(([1, 2], 2, 2), ([5, 6], 1, 1)))
    assert shorter.first_difference == (2, None)
    assert shorter.equal_share == 4 / 6


def test_acceptance_length_is_of_all_rounds_together() -> None:
    wide = outputs(([0], 10, 20), ([0], 10, 10), ([0], 10, 15))
    found = compare_acceptance(wide, outputs(([0], 10, 18), ([0], 10, 9), ([0], 10, 13)), 4)
    assert found.before == 2.5
    assert found.after == pytest.approx(1 + 40 / 30)
    assert found.change == pytest.approx((1 + 40 / 30) / 2.5 - 1)
    assert 0 < found.error < 0.05
    assert compare_acceptance(wide, wide, 4).error == pytest.approx(0, abs=1e-12)


def test_a_loss_of_acceptance_fails_unless_it_may_be_chance() -> None:
    wide, narrow = outputs(*[([0], 100, 200)] * 8), outputs(*[([0], 100, 186)] * 8)
    sure = compare_acceptance(wide, narrow, 4)
    assert [check.passed for check in checks_of(ALLOWED, COMPARED, sure, None)] == [True, True, False]
    check = checks_of(ALLOWED, COMPARED, replace(sure, error=0.05), None)[2]
    assert check.passed
    assert "twice its standard error" in check.note
    assert not checks_of(ALLOWED, COMPARED, replace(sure, error=math.nan), None)[2].passed
    halved = compare_acceptance(wide, outputs(*[([0], 100, 50)] * 8), 4)
    assert not checks_of(ALLOWED, COMPARED, replace(halved, error=0.5), None)[2].passed, "few texts excuse no more"
    assert not checks_of(ALLOWED, COMPARED, replace(sure, after=math.nan), None)[2].passed


def test_the_error_of_layers_is_relative_and_names_the_layer_that_adds_it() -> None:
    rng = np.random.default_rng(3)
    streams = rng.normal(size=(5, 4, 8))
    scale = np.array([0, 0, 0.1, 0.11])[None, :, None]
    found = compare_layers(lambda _: streams, lambda _: streams * (1 + scale), [(1, 2)], lambda _: None)
    assert [each.error for each in found] == pytest.approx([0, 0, 0.1, 0.11])
    assert most_added(found) == 1
    assert most_added((LayerError(0, 0.0),)) == 0


def test_every_recipe_has_limits() -> None:
    assert set(LIMITS) == set(RECIPES)
    assert LIMITS["fp8"].perplexity_increase == LIMITS["mxfp8"].perplexity_increase == 0.01
    assert LIMITS["int4"].perplexity_increase == 0.05
    assert LIMITS["fp8"].acceptance_drop == 0.03
