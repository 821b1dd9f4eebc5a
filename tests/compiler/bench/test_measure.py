"""Turns of a benchmark: every mode answers the same group of prompts before the next; streamed pieces are timed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.bench.measure import Level, ModeTurn, TimedAnswer, answer_functions, gaps, groups_of, take_turns
from peagle.compiler.bench.modes import modes_of
from peagle.compiler.bench.workloads import EncodedPrompt
from peagle.compiler.bundled.prompts import Prompt
from peagle.engines import Engine, SamplingParams, Submission
from peagle.engines.request_factory import EncodedInput

PROMPTS = [EncodedPrompt(Prompt(str(at), "x"), EncodedInput(tuple(range(4, 10 + at)))) for at in range(3)]


@given(st.integers(1, 30), st.integers(1, 8))
def test_groups_are_full_and_use_each_prompt_at_most_once_if_there_are_enough(count: int, at_once: int) -> None:
    groups = groups_of(count, at_once)
    assert groups
    assert {len(group) for group in groups} == {at_once}
    asked = [at for group in groups for at in group]
    assert {*asked} <= {*range(count)}
    if count >= at_once:
        assert len({*asked}) == len(asked) > count - at_once


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.sampled_from([[0.0], [0.8, 0.0], [0.0, 0.5, 1.0]]))
def test_every_turn_asks_one_group_of_all_modes_and_begins_with_the_next(
    modes: int, groups: int, repeats: int, temperatures: list[float]
) -> None:
    called: list[tuple[float, str, Sequence[int]]] = []

    def ask(name: str, group: Sequence[int], temperature: float) -> ModeTurn:
        called.append((temperature, name, group))
        return ModeTurn((), 1.0)

    levels = [Level(1, temperature=each) for each in temperatures]
    names = [f"m{at}" for at in range(modes)]
    advanced: list[int] = []
    take_turns(
        {name: partial(ask, name) for name in names},
        [(at,) for at in range(groups)],
        repeats,
        levels,
        advanced.append,
    )
    assert {len(level.turns) for level in levels} == {groups * repeats}
    assert all([*turn] == names for level in levels for turn in level.turns)
    places = [(temperature, name) for temperature in temperatures for name in names]
    assert sum(advanced) == len(called) == len(places) * groups * repeats
    for at in range(groups * repeats):
        these = called[at * len(places) : (at + 1) * len(places)]
        assert {group for _, _, group in these} == {(at % groups,)}
        assert sorted(each[:2] for each in these) == sorted(places)
        assert these[0][:2] == places[at % len(places)]


def test_interrupted_turn_is_not_counted() -> None:
    def interrupt(_: Sequence[int], temperature: float) -> ModeTurn:
        if temperature:
            raise KeyboardInterrupt
        return ModeTurn((), 1.0)

    levels = [Level(1), Level(1, temperature=0.8)]
    with pytest.raises(KeyboardInterrupt):
        take_turns({"a": interrupt, "b": interrupt}, [(0,)], 1, levels, lambda _: None)
    assert [level.turns for level in levels] == [[], []]


def test_time_of_a_piece_without_tokens_belongs_to_the_next() -> None:
    assert gaps([(1.0, 1), (2.0, 3), (2.5, 0), (4.0, 2)]) == ((1.0, 3), (2.0, 2))
    assert gaps([]) == gaps([(1.0, 1)]) == ()


def test_answers_of_an_engine_have_every_token_and_its_time(tiny_engine: Engine) -> None:
    modes = modes_of([tiny_engine.manifest], counts=[2, "auto"])
    params = SamplingParams(max_tokens=12, ignore_eos=True)

    with answer_functions(lambda _: nullcontext(tiny_engine), modes, PROMPTS, {0.0: lambda _: params}) as ways:
        turns = {title: ask((0, 2), 0.0) for title, ask in ways.items()}
    plain = tiny_engine.generate([PROMPTS[0].input.ids, PROMPTS[2].input.ids], params, num_speculative_tokens=0)
    for title, turn in turns.items():
        assert [each.token_ids for each in turn.answers] == [each.token_ids for each in plain], title
        for answer in turn.answers:
            assert sum(tokens for _, tokens in answer.pieces) < answer.tokens == 12
            assert 0 < sum(gap for gap, _ in answer.pieces) <= turn.seconds
        assert turn.user_speed > 0
        assert turn.total_speed == pytest.approx(24 / turn.seconds)
    drafted = {title: sum(each.acceptance.drafted for each in turn.answers) for title, turn in turns.items()}
    assert drafted.pop("plain") == 0
    assert all(count for title, count in drafted.items() if "auto" not in title)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_every_mode_is_warmed_up_at_every_temperature_with_as_many_requests_as_it_is_measured_with(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    asked: list[object] = []
    submit = tiny_engine.submit

    def counted(prompt: Any, params: SamplingParams, **options: Any) -> Submission:
        asked.append((options["num_speculative_tokens"], params.temperature, params.max_tokens))
        return submit(prompt, params, **options)

    monkeypatch.setattr(tiny_engine, "submit", counted)
    modes = modes_of([tiny_engine.manifest], ["ngram"], [2])
    given = {each: partial(SamplingParams, 12, each) for each in (0.0, 0.8)}
    with answer_functions(lambda _: nullcontext(tiny_engine), modes, PROMPTS, given, concurrency):
        every = [(k, temperature, 4) for k in (0, 2) for temperature in given]
        assert asked == [each for each in every for _ in range(concurrency)]


def test_speed_counts_tokens_after_the_first() -> None:
    answer = TimedAnswer(0, "", (1,) * 5, 5, 0.1, 2.0, (), None)
    turn = ModeTurn((answer,), 3.0)
    assert (turn.user_speed, turn.total_speed) == (2.0, 5 / 3)
    assert ModeTurn((), 1.0).user_speed == 0
