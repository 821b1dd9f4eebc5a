"""Saturation is reported if it is large, and so is the risk that other texts exceed the ranges."""

from __future__ import annotations

import numpy as np

from peagle.compiler.precision.calibration.saturation import Clipped, Saturation


def of(ranges: dict[str, object], clipped: dict[str, object], peaks: dict[str, object]) -> Saturation:
    return Saturation.of(
        *({n: np.asarray(v, np.float32) for n, v in each.items()} for each in (ranges, clipped, peaks))
    )


def test_worst_saturation_is_first_and_experts_are_numbered() -> None:
    found = of(
        {"a": 1, "b": 2, "experts": [1, 1, 4]},
        {"a": 0.0001, "experts": [0, 0, 0.25]},
        {"a": [1.5, 1], "b": [2, 2], "experts": [[1, 1], [1, 1], [8, 40]]},
    )
    assert found.inputs == 5
    assert [(each.name, each.beyond) for each in found.clipped] == [("experts, expert 2", 10), ("a", 1.5)]
    (warning,) = found.warnings()
    assert "many values of 1 input: 25.00% of the inputs of experts, expert 2, up to 10 times its range" in warning
    record = found.record()
    assert (record["clipped"], record["worst"][0]["name"]) == (2, "experts, expert 2")


def test_little_beyond_a_range_is_recorded_and_not_warned_of() -> None:
    assert not Clipped("a", 0.001, 4).deserves_warning
    assert Clipped("a", 0.0011, 1).deserves_warning
    assert Clipped("a", 0.0001, 4.1).deserves_warning
    found = of({"a": 1}, {"a": 0.0001}, {"a": [1.5, 1.4]})
    assert found.warnings() == []
    assert found.record()["clipped"] == 1


def test_disagreeing_sample_halves_are_reported() -> None:
    found = of({"a": 3, "b": 2, "c": 9}, {}, {"a": [3, 1], "b": [2, 1.9], "c": [9, 4]})
    assert found.record()["halves"] == {"inputs": 3, "apart": 3.0, "in": "a", "unsettled": 2, "limit": 2.0}
    (warning,) = found.warnings()
    assert "more than a factor of 2 in 2 of 3 inputs, at most by a factor of 3 (a)" in warning


def test_one_sample_has_no_halves() -> None:
    found = of({"a": 3}, {}, {"a": [3, 0]})
    assert found.record()["halves"] == {"inputs": 0, "apart": 1.0, "in": "", "unsettled": 0, "limit": 2.0}
    assert found.warnings() == []
