"""Two runtimes' answers are equal if all tokens and rounds are; otherwise the first difference is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds import Answer, Difference, acceptance_length, accepted_by_position, figures, first_difference

from peagle.engines import Engine

K = 4


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """Return an answer as decoding makes it: a token of the prompt's pass, and one more than accepted per round."""
    accepted = draw(st.lists(st.integers(0, K), max_size=8))
    count = 1 + sum(accepted) + len(accepted)
    return Answer(tuple(range(100, 100 + count)), (K,) * len(accepted), tuple(accepted))


@given(answers())
def test_answer_does_not_differ_from_itself(answer: Answer) -> None:
    assert first_difference(answer, answer) is None


@given(answers(), st.data())
def test_other_token_is_the_first_difference(answer: Answer, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(answer.tokens) - 1))
    tokens = (*answer.tokens[:place], 7, *answer.tokens[place + 1 :])
    expected = Difference(place, answer.tokens[place], 7)
    assert first_difference(answer, replace(answer, tokens=tokens)) == expected


@given(answers(), answers())
def test_order_of_the_runtimes_only_swaps_the_message(a: Answer, b: Answer) -> None:
    found, swapped = first_difference(a, b), first_difference(b, a)
    if found is None:
        assert a == b
        assert swapped is None
    else:
        assert swapped == replace(found, ours=found.theirs, theirs=found.ours)


def test_round_that_accepts_fewer_drafts_of_the_same_text_is_named_with_its_first_token() -> None:
    ours = Answer((1, 2, 3, 4, 5, 6), (4, 4), (1, 2))
    theirs = Answer((1, 2, 3, 4, 5, 6), (4, 4, 4), (1, 1, 0))
    assert first_difference(ours, theirs) == Difference(3, (4, 2), (4, 1), round=1)


def test_round_that_differs_because_of_its_token_is_not_blamed() -> None:
    ours = Answer((1, 2, 3, 4, 5), (4, 4), (1, 1))
    theirs = Answer((1, 2, 3, 9, 8), (4, 4, 4), (1, 0, 0))
    assert first_difference(ours, theirs) == Difference(3, 4, 9)


def test_round_before_the_other_token_is_the_first_difference() -> None:
    ours = Answer((1, 2, 3, 4, 5), (4, 4), (1, 1))
    theirs = Answer((1, 2, 3, 4, 9), (4, 4, 4), (0, 0, 1))
    assert first_difference(ours, theirs) == Difference(1, (4, 1), (4, 0), round=0)


def test_text_that_ends_earlier_differs_where_it_ends() -> None:
    ours = Answer((1, 2, 3), (4,), (1,))
    assert first_difference(ours, replace(ours, tokens=(1, 2))) == Difference(2, 3, None)


def test_round_with_fewer_drafts_differs_even_if_as_many_are_accepted() -> None:
    ours = Answer((1, 2, 3), (4,), (1,))
    assert first_difference(ours, replace(ours, drafted=(3,))) == Difference(1, (4, 1), (3, 1), round=0)


@given(st.lists(answers(), max_size=4))
def test_position_counts_the_rounds_that_accepted_up_to_it(several: list[Answer]) -> None:
    counts = accepted_by_position(several, K)
    rounds = [accepted for answer in several for accepted in answer.accepted]
    assert counts == tuple(sum(accepted >= position for accepted in rounds) for position in range(1, K + 1))
    assert sum(counts) == sum(rounds)
    assert acceptance_length(several) == pytest.approx(1 + sum(counts) / len(rounds) if rounds else 1)


def test_figures_are_cells_of_a_table() -> None:
    assert figures([Answer((1, 2, 3, 4, 5), (4, 4), (2, 0))], 4) == "2 | 8 | 1 1 0 0 | 2.000"


def test_answer_of_an_engine_has_its_rounds(demo_engine: Path) -> None:
    with Engine.load(demo_engine) as engine:
        answer = Answer.of(engine, [5, 6, 7], 16, "peagle-chain", 2)
        plain = Answer.of(engine, [5, 6, 7], 16, "none", 0)
    assert answer.tokens == plain.tokens
    assert (plain.drafted, plain.accepted) == ((), ())
    assert set(answer.drafted) == {2}
    assert len(answer.tokens) <= 1 + sum(answer.accepted) + len(answer.accepted)
