"""A drafter that does not fit its target is reported once; a fitting one is not, even in a bad phase."""

from __future__ import annotations

import logging

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.policy import misfit
from peagle.engines.policy.misfit import MIN_DRAFTS, Misfits, MisfitWatch


def test_never_accepted_drafts_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = MisfitWatch()
    with caplog.at_level(logging.WARNING, "peagle.policy"):
        for _ in range(MIN_DRAFTS - 1):
            watch.add(5, 0)
        assert not watch.warning
        for _ in range(100):
            watch.add(5, 0)
    assert f"only 0 of {MIN_DRAFTS} first drafts were accepted" in watch.warning
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_few_accepted_drafts_are_enough_and_rounds_without_any_do_not_count() -> None:
    watch = MisfitWatch()
    for number in range(4 * MIN_DRAFTS):
        watch.add(0, 0)
        watch.add(3, int(number % 10 == 0))
        assert not watch.warning


def test_warning_clears_when_drafts_are_accepted() -> None:
    watch = MisfitWatch()
    for accepted in (0,) * MIN_DRAFTS + (1,) * MIN_DRAFTS:
        watch.add(1, accepted)
    assert not watch.warning


def test_each_drafter_is_judged_by_its_own_drafts() -> None:
    misfits = Misfits()
    for _ in range(MIN_DRAFTS):
        misfits.of("good").add(3, 2)
        misfits.of("bad").add(3, 0)
    assert misfits.names == {"bad"}
    assert [warning.count("the drafter bad does not match") for warning in misfits.warnings] == [1]
    misfits.forget("bad")
    misfits.forget("unknown")
    assert (misfits.names, misfits.warnings) == (frozenset(), ())


def test_requests_of_an_unloaded_drafter_say_nothing_about_a_later_one_of_its_name() -> None:
    class Head:
        pass

    misfits, unloaded = Misfits(), Head()
    misfits.forget("code", unloaded)
    for _ in range(MIN_DRAFTS):
        misfits.of("code", unloaded).add(3, 0)
    assert misfits.names == frozenset()
    for _ in range(MIN_DRAFTS):
        misfits.of("code", Head()).add(3, 0)
    assert misfits.names == {"code"}


def test_misfit_is_reported_except_for_unpredictable_texts(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misfit, "MIN_RATE", 2.0)  # any acceptance of the tiny head is too low
    hot = SamplingParams(max_tokens=80, ignore_eos=True, temperature=2.0, seed=1)
    greedy = SamplingParams(max_tokens=80, ignore_eos=True)
    prompts = [[5, 6], [7, 8, 9], [40], [41, 3]]
    with Engine(tiny_engine.folder, tiny_engine.manifest, tiny_engine._backend, tiny_engine.tokenizer) as engine:
        assert not any(output.warnings for output in engine.generate(prompts, hot))
        assert not any(output.warnings for output in engine.generate(prompts, greedy, draft="ngram"))
        assert engine.load_now.warnings == ()
        *_, last = engine.generate(prompts * 2, greedy)
        assert "does not match this target" in last.warnings[0]
        assert engine.load_now.warnings == last.warnings
