"""What results say of how drafts were accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.engines import Acceptance, Engine, SamplingParams

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
LOSSY = SamplingParams(max_tokens=24, ignore_eos=True, acceptance_tolerance=0.97)
PENALIZED = SamplingParams(max_tokens=24, ignore_eos=True, acceptance_tolerance=0.97, presence_penalty=0.1)


@pytest.mark.parametrize("half", ["tiny_folder", "eagle3_folder"])
def test_a_tolerance_accepts_more_and_is_named_only_where_it_could(request: pytest.FixtureRequest, half: str) -> None:
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


def test_of_many_one_that_is_lossy_is_enough() -> None:
    summed = Acceptance()
    for each in (Acceptance(1, 4, 2, {2: 1}), Acceptance(1, 4, 4, {4: 1}, tolerance=0.5), Acceptance(tolerance=0.1)):
        summed.add(each)
    assert summed.is_lossy
    assert (summed.tolerance, summed.drafted, summed.accepted) == (0.5, 8, 6)
