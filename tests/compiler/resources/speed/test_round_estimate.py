"""Rounds: sums of passes, tokens per second, the fastest K; unchanged by a JSON round trip."""

from __future__ import annotations

import json

import pytest

from peagle.compiler.resources.speed.acceptance_lengths import AcceptanceLengths
from peagle.compiler.resources.speed.page import speed_line, speed_rows, speed_table
from peagle.compiler.resources.speed.pass_work import AttentionWork, GraphWork, PassWork
from peagle.compiler.resources.speed.round_estimate import (
    PassSeconds,
    SpeedEstimate,
    TimedDevice,
    estimate_rounds,
)
from peagle.engines.draft_methods import METHODS


def _milliseconds(work: PassWork) -> PassSeconds:
    """A device that takes a millisecond for a target's pass and another tenth for each column."""
    time = 1e-3 * work.kernels * (1 + work.columns / 10)
    return PassSeconds(time / 2, time, 2 * time)


READS = (AttentionWork(position_bytes=1, operations=0),)
TARGET = GraphWork({"mlp": 1000}, {"bf16": 500}, {}, "bf16", READS, 0, 0, kernels=1)
DRAFTER = GraphWork({"drafter": 100}, {"bf16": 50}, {}, "bf16", READS, 0, 0, kernels=1)
DEVICE = TimedDevice("a device", _milliseconds, ("a datasheet",), host_seconds=1e-4)
LENGTHS = AcceptanceLengths({4: 4.0}, "a card")


def _estimate(lengths: AcceptanceLengths | None = LENGTHS, device: TimedDevice | None = DEVICE) -> SpeedEstimate:
    return estimate_rounds(TARGET, DRAFTER, METHODS["peagle"], device, lengths, max_drafts=4, context=10, shown=(0, 4))


def test_a_round_is_the_passes_of_target_and_drafter() -> None:
    found = _estimate()
    plain, drafted = found.round(0), found.round(4)
    assert plain.best_ms == pytest.approx(1.1 + 0.1)
    assert drafted.best_ms == pytest.approx(1.5 + 1.8 + 2 * 0.1)
    assert drafted.worst_ms == pytest.approx(2 * (1.5 + 1.8) + 2 * 0.1)
    assert drafted.floor_ms == pytest.approx((1.5 + 1.8) / 2)
    assert drafted.bytes == (1000 + 10 + 5) + (100 + 10 + 8)
    assert drafted.kernels == 2
    assert drafted.tokens_per_second(drafted.best_ms) == pytest.approx(4.0 / 3.5e-3)
    assert found.sources == ("a datasheet", "a card")


def test_the_fastest_k_has_the_most_tokens_per_second() -> None:
    found = _estimate()
    assert found.fastest is not None
    rates = {each.k: each.tokens_per_second(each.expected_ms) for each in found.rounds}
    assert rates[found.fastest] == max(rates.values(), key=lambda rate: rate or 0)
    useless = _estimate(AcceptanceLengths({4: 1.0}, "none accepted"))
    assert useless.fastest == 0


def test_more_rows_move_more_and_yield_more() -> None:
    one, two = (
        estimate_rounds(TARGET, DRAFTER, METHODS["peagle"], DEVICE, LENGTHS, max_drafts=4, context=10, rows=rows)
        for rows in (1, 2)
    )
    for fewer, more in zip(one.rounds, two.rounds, strict=False):
        assert more.bytes > fewer.bytes
        assert (more.tokens or 0) >= (fewer.tokens or 0)


def test_without_lengths_or_device_nothing_is_guessed() -> None:
    unknown = _estimate(lengths=None)
    assert unknown.round(4).tokens is None
    assert unknown.round(4).best_ms is not None
    assert unknown.round(0).tokens == 1.0
    assert unknown.fastest is None
    nowhere = _estimate(device=None)
    assert nowhere.round(4).best_ms is nowhere.fastest is None
    assert nowhere.round(4).tokens == pytest.approx(4.0)


def test_an_estimate_survives_json_and_shows_what_was_measured() -> None:
    found = _estimate().with_measured({0: 1.0, 4: 7.0})
    again = SpeedEstimate.from_json(json.loads(json.dumps(found.as_json())))
    assert again.rounds == found.rounds
    assert (again.device, again.fastest, again.context) == (found.device, found.fastest, found.context)
    assert found.round(4).error == pytest.approx((3.5 + 6.8) / 2 / 7.0 - 1)
    assert dict(speed_rows(again))["  K = 4"].endswith("measured 7.00 ms (the estimate is off by -26%)")
    assert found.as_json()["rounds"][0]["error"] == pytest.approx(0.75)


def test_pages_say_that_it_is_an_estimate_and_that_nothing_was_measured() -> None:
    head, *rows = speed_table(_estimate())
    assert head[0] == "speed estimate"
    assert [row[0] for row in rows][:1] == ["  plain"]
    assert {len(row) for row in (head, *rows)} == {len(head)}
    assert "for a device, not measured: one request after 10 tokens" in speed_line(_estimate(), 4)
    assert ("speed estimate", "for a device, not measured: one request after 10 tokens") in speed_rows(_estimate())
    assert len(speed_table(_estimate(device=None))[0]) < len(head), "columns without figures are left out"
