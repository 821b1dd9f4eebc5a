"""Token counts follow llama.cpp's end-of-text rules; most answers must be equal, and all means close."""

from __future__ import annotations

from collections import Counter

import pytest
from compare_with_llama_cpp import Counts, counters, problems, total, verdict
from rounds import Answer

METRICS = """\
# HELP llamacpp:spec_decode_num_drafts_total Speculative: Total speculative decoding verification steps
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 12
llamacpp:spec_decode_num_draft_tokens_total 47
llamacpp:prompt_tokens_seconds 31.5
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 9
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 4
"""


def counts(*tokens: int, positions: tuple[int, ...] = (6, 4), rounds: int = 10) -> Counts:
    return Counts(tokens, rounds, 2 * rounds, positions)


def test_counters_are_read_by_name_and_position() -> None:
    found = counters(METRICS)
    assert found == Counter(drafts=12, draft_tokens=47, accepted_tokens_per_pos0=9, accepted_tokens_per_pos1=4)


def test_rounds_of_an_answer_are_summed_by_position() -> None:
    answer = Answer((5, 6, 7, 8, 9), (4, 4), (0, 2))
    assert Counts.of(answer, 4, 64, [2]) == Counts(answer.tokens, 2, 8, (1, 1, 0, 0))


@pytest.mark.parametrize(
    ("tokens", "accepted", "counted"),
    [
        ((5, 6, 2), 1, (1, 0, 0, 0)),  # the target's own token ends the text
        ((5, 6, 2), 2, (1, 0, 0, 0)),  # the second draft ends it
        ((5, 6, 2), 4, (1, 0, 0, 0)),  # and two more drafts are accepted after it
        ((5, 6, 7, 8, 2), 4, (1, 1, 1, 1)),  # the last draft ends it
    ],
)
def test_drafts_after_the_end_of_a_text_are_not_counted(
    tokens: tuple[int, ...], accepted: int, counted: tuple[int, ...]
) -> None:
    assert Counts.of(Answer(tokens, (4,), (accepted,)), 4, 64, [2]) == Counts(tokens, 1, 4, counted)


@pytest.mark.parametrize(
    ("most", "expected"),
    [(9, (2, 8, (2, 1, 1, 1))), (8, (2, 8, (2, 1, 1, 1))), (7, (2, 7, (2, 1, 1, 0))), (4, (1, 2, (1, 0, 0, 0)))],
)
def test_rounds_draft_one_token_less_than_is_left(most: int, expected: tuple[int, int, tuple[int, ...]]) -> None:
    tokens = tuple(range(10, 10 + most))[:8]
    assert Counts.of(Answer(tokens, (4, 4), (1, 4)), 4, most, [2]) == Counts(tokens, *expected)


def test_sums_add_rounds_drafts_and_positions() -> None:
    assert total([counts(1, 2), counts(3, positions=(1, 0), rounds=2)]) == Counts((1, 2, 3), 12, 24, (7, 4))
    assert counts(1, 2).acceptance_length == 2.0
    assert counts(1, positions=(0, 0), rounds=0).acceptance_length == 1.0


def test_verdict_reports_the_first_different_token_or_different_rounds() -> None:
    assert verdict(counts(1, 2), counts(1, 2)) == "equal"
    assert verdict(counts(1, 2, 3), counts(1, 4, 3)) == "other text from token 1"
    assert verdict(counts(1, 2), counts(1, 2, 3)) == "other text from token 2"
    assert verdict(counts(1, 2), counts(1, 2, rounds=11)) == "same text, other rounds"


def test_few_different_answers_and_a_close_acceptance_length_pass() -> None:
    ours = [counts(1, 2)] * 9 + [counts(1, 3)]
    theirs = [counts(1, 2)] * 10
    assert problems(ours, theirs, 0.9, 0.02) == []
    assert problems(ours, theirs, 0.91, 0.02) == ["9 of 10 answers are equal, fewer than 91%"]


@pytest.mark.parametrize("accepted", [(9, 4), (3, 2)])
def test_other_acceptance_length_is_a_problem_in_either_direction(accepted: tuple[int, int]) -> None:
    (problem,) = problems([counts(1, positions=accepted)], [counts(1)], 0.0, 0.02)
    assert problem.startswith("acceptance lengths ")
    assert problem.endswith(" and 2.000 differ by more than 2%")
