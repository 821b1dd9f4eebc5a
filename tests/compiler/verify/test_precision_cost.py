"""The verdict on a precision: exceeding a limit fails, and so does NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from peagle.compiler.verify.logits import LogitsComparison, compare_logits
from peagle.compiler.verify.precision_cost import Precision
from peagle.compiler.verify.precision_limits import checks_of
from peagle.plugins.number_formats import PrecisionLimits

COMPARED = LogitsComparison(3, 30, 0.01, 0.02, 0.03, 0.99, 10.0, 10.05)
ALLOWED = PrecisionLimits(0.01, 0.05, 0.03)


def test_single_nan_logit_fails_the_check() -> None:
    def broken(ids: Sequence[int]) -> np.ndarray:
        logits = np.ones((len(ids), 4), np.float32)
        logits[0, 0] = np.nan
        return logits

    found = compare_logits(lambda ids: np.ones((len(ids), 4), np.float32), broken, [(1, 2, 3)])
    assert math.isnan(found.kl_mean)
    precision = Precision("int8", logits=found, checks=checks_of(ALLOWED, found, None, None))
    assert precision.status == "failed"
    json.dumps(precision.as_json(), allow_nan=False)


def test_exceeded_limit_fails_with_the_excess() -> None:
    def status(compared: LogitsComparison) -> Precision:
        return Precision("fp8", checks=checks_of(ALLOWED, compared, None, None))

    assert status(COMPARED).status == "passed"
    dear = status(replace(COMPARED, perplexity_candidate=10.2))
    assert dear.status == "failed"
    assert dear.failures() == ["perplexity increase is 0.02; the limit is 0.01 for fp8"]
    assert status(replace(COMPARED, kl_mean=0.06)).status == "failed"


def test_empty_measurement_is_not_a_pass() -> None:
    assert Precision("fp8").status == "not checked"
    assert Precision("fp8", skipped="gone", checks=checks_of(ALLOWED, COMPARED, None, None)).status == "not checked"
