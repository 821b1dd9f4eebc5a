"""Acceptance figures in results."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.engines import Acceptance, Engine, SamplingParams
from peagle.engines.requests.results import LATER

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
LOSSY = SamplingParams(max_tokens=24, ignore_eos=True, acceptance_tolerance=0.97)
PENALIZED = SamplingParams(max_tokens=24, ignore_eos=True, acceptance_tolerance=0.97, presence_penalty=0.1)


@pytest.mark.parametrize("half", ["tiny_folder", "eagle3_folder"])
def test_tolerance_is_labelled_lossy_only_if_effective(request: pytest.FixtureRequest, half: str) -> None:
    folder: Path = request.getfixturevalue(half)
    with Engine.load(folder, threads=1, max_batch_size=2) as engine:
        for lossy in (LOSSY, PENALIZED):
            exact, tolerant = engine.generate([[5, 9, 30, 7]] * 2, [PARAMS, lossy])
            assert tolerant.acceptance.accepted > exact.acceptance.accepted
            assert (exact.acceptance.is_lossy, tolerant.acceptance.is_lossy) == (False, True)
            assert tolerant.acceptance.tolerance == 0.97
            assert tolerant.token_ids != exact.token_ids
        (plain,) = engine.generate([[5, 9, 30, 7]], LOSSY, num_speculative_tokens=0)
        assert not plain.acceptance.is_lossy
        assert plain.token_ids == exact.token_ids


def test_one_lossy_result_marks_the_total() -> None:
    summed = Acceptance()
    for each in (Acceptance(1, 4, 2, {2: 1}), Acceptance(1, 4, 4, {4: 1}, tolerance=0.5), Acceptance(tolerance=0.1)):
        summed.add(each)
    assert summed.is_lossy
    assert (summed.tolerance, summed.drafted, summed.accepted) == (0.5, 8, 6)


def test_times_of_passes_are_counted_and_added_up() -> None:
    one, other = Acceptance(), Acceptance()
    one.add_round(3, 2, (0.010, 0.002))
    one.add_round(0, 0, (0.006, 0.0))
    other.add_round(3, 1, (0.020, 0.004))
    other.add_round(3, 3)
    assert (one.passes, other.passes) == ([(3, 0.010), (0, 0.006)], [(3, 0.020)])
    one.add(other)
    assert one.accepted_per_position == (3, 2, 1)
    assert one.milliseconds_per_round == pytest.approx((9.0, 1.5))
    assert Acceptance().milliseconds_per_round == (0.0, 0.0)
    assert (Acceptance().later_acceptance_length, Acceptance().accepted_per_position) == (1.0, ())


def test_later_rounds_exclude_the_first_twenty_iterations() -> None:
    """P-EAGLE's announcement counts iterations: 19 rounds of four tokens each are not past the beginning of a text."""
    one, other = Acceptance(), Acceptance()
    for _ in range(LATER - 1):
        one.add_round(3, 3)
    one.add_round(0, 0)
    assert (one.later_rounds, one.later_accepted) == (0, 0)
    for accepted in (1, 3):
        one.add_round(3, accepted)
    one.add_round(0, 0)
    assert (one.later_rounds, one.later_accepted, one.later_acceptance_length) == (2, 4, 3.0)
    other.add(one)
    other.add(one)
    assert (other.later_rounds, other.later_accepted, other.later_acceptance_length) == (4, 8, 3.0)


def test_result_reports_time_and_round_cost(tiny_engine: Engine) -> None:
    (output,) = tiny_engine.generate([[5, 9, 30, 7]], PARAMS)
    verify, draft = output.acceptance.milliseconds_per_round
    rounds = output.acceptance.rounds + output.acceptance.undrafted
    assert 0 < rounds * (verify + draft) <= 1000 * output.decode_seconds
    assert verify > 0 < draft
    assert output.time_to_first_token == output.queue_seconds + output.prefill_seconds > 0
    assert output.inter_token_latency == pytest.approx(output.decode_seconds / 23)
    assert output.acceptance.later_rounds < rounds
