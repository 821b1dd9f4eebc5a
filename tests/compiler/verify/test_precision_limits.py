"""The limits of each precision, and losses that may be chance."""

from __future__ import annotations

import math
from dataclasses import replace

from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.verify.generation import compare_acceptance
from peagle.compiler.verify.logits import LogitsComparison
from peagle.compiler.verify.precision_limits import checks_of, limits_of
from peagle.plugins.number_formats import PrecisionLimits
from tests.compiler.verify.outputs import outputs

COMPARED = LogitsComparison(3, 30, 0.01, 0.02, 0.03, 0.99, 10.0, 10.05)
ALLOWED = PrecisionLimits(0.01, 0.05, 0.03)


def test_acceptance_loss_fails_unless_within_noise() -> None:
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
    limits = {name: limits_of(name, name) for name in RECIPES}
    assert limits["fp8"].perplexity_increase == limits["mxfp8"].perplexity_increase == 0.01
    assert limits["int4"].perplexity_increase == 0.05
    assert limits["fp8"].acceptance_drop == 0.03
    assert all(each.perplexity_increase > 0 and each.kl_mean > 0 for each in limits.values())


def test_caches_that_alone_round_have_limits_of_their_own() -> None:
    assert limits_of("fp32", "int8") == PrecisionLimits(0.005, 0.01, 0.03)
    assert limits_of("int8", "int8") == limits_of("int8", "fp32"), "the recipe's are wider"
