"""What a precision may cost, and that no number that is none slips through."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.verify.generation import compare_acceptance
from peagle.compiler.verify.logits import LogitsComparison, compare_logits
from peagle.compiler.verify.precision_cost import LIMITS, Precision, PrecisionLimits, checks_of
from tests.compiler.verify.outputs import outputs

COMPARED = LogitsComparison(3, 30, 0.01, 0.02, 0.03, 0.99, 10.0, 10.05)
ALLOWED = PrecisionLimits(0.01, 0.05, 0.03)


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


def test_every_recipe_has_limits() -> None:
    assert set(LIMITS) == set(RECIPES)
    assert LIMITS["fp8"].perplexity_increase == LIMITS["mxfp8"].perplexity_increase == 0.01
    assert LIMITS["int4"].perplexity_increase == 0.05
    assert LIMITS["fp8"].acceptance_drop == 0.03
