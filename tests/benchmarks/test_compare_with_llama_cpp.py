"""Single prompts may differ from llama.cpp; the share of equal texts and the acceptance length of all may not."""

from __future__ import annotations

from collections import Counter

import pytest
from compare_with_llama_cpp import Counts, common, counters, problems, total
from hypothesis import given
from hypothesis import strategies as st
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
    assert Counts.of(Answer((5, 6, 7, 2), (4, 4), (0, 2)), 4) == Counts((5, 6, 7, 2), 2, 8, (1, 1, 0, 0))


def test_sums_add_rounds_drafts_and_positions() -> None:
    assert total([counts(1, 2), counts(3, positions=(1, 0), rounds=2)]) == Counts((1, 2, 3), 12, 24, (7, 4))
    assert counts(1, 2).acceptance_length == 2.0
    assert counts(1, positions=(0, 0), rounds=0).acceptance_length == 1.0


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_beginning_is_the_longest_one(a: list[int], b: list[int]) -> None:
    length = common(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


def test_few_other_texts_and_a_close_acceptance_length_are_no_problem() -> None:
    ours = [counts(1, 2)] * 9 + [counts(1, 3)]
    theirs = [counts(1, 2)] * 10
    assert problems(ours, theirs, 0.9, 0.02) == []
    assert problems(ours, theirs, 0.91, 0.02) == ["9 of 10 texts are equal, fewer than 91%"]


@pytest.mark.parametrize("accepted", [(9, 4), (3, 2)])
def test_other_acceptance_length_is_a_problem_in_either_direction(accepted: tuple[int, int]) -> None:
    (problem,) = problems([counts(1, positions=accepted)], [counts(1)], 0.9, 0.02)
    assert problem.startswith("acceptance lengths ")
    assert problem.endswith(" and 2.000 differ by more than 2%")
