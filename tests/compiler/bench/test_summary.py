"""Figures of a benchmark: pairing, comparison with plain decoding, and empty cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.bench.measure import Level, ModeTurn, TimedAnswer
from peagle.compiler.bench.modes import DecodingMode
from peagle.compiler.bench.summary import AcceptanceFigures, FirstDifference, LatencyFigures, figures_of
from peagle.compiler.bundled.prompts import Prompt
from peagle.engines.requests.results import Acceptance

PLAIN = DecodingMode("plain", "plain", 0, "none", 0)
PARALLEL = DecodingMode("P-EAGLE, K = 4", "P-EAGLE", 0, "peagle", 4)
SLOW = DecodingMode("EAGLE-3, K = 2", "EAGLE-3", 1, "eagle3", 2, is_autoregressive=True)
FAST = DecodingMode("EAGLE-3, K = 4", "EAGLE-3", 1, "eagle3", 4, is_autoregressive=True)
PROMPTS = [Prompt("first", "x", "code"), Prompt("second", "y", "prose"), Prompt("third", "z", "code")]
TOKENS = (5, 6, 7, 8, 9)


def answer(prompt: int, seconds: float, tokens: Sequence[int] = TOKENS, accepted: Sequence[int] = ()) -> TimedAnswer:
    acceptance = Acceptance()
    for each in accepted:
        acceptance.add_round(4, each)
    pieces = tuple((seconds / (len(tokens) - 1), 1) for _ in tokens[1:])
    return TimedAnswer(prompt, decode(tokens), tuple(tokens), len(tokens), 0.1, seconds, pieces, acceptance)


def turn(**answers: TimedAnswer) -> dict[str, ModeTurn]:
    titles = {"plain": PLAIN, "parallel": PARALLEL, "slow": SLOW, "fast": FAST}
    return {titles[name].title: ModeTurn((each,), 0.1 + each.decode_seconds) for name, each in answers.items()}


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def test_gains_are_ratios_within_a_turn() -> None:
    turns = [turn(plain=answer(at, slow), parallel=answer(at, slow / 2)) for at, slow in enumerate((1, 4, 9))]
    plain, parallel = figures_of([Level(1, turns)], [PLAIN, PARALLEL], PROMPTS, decode=decode)
    assert plain.over_plain is not None
    assert parallel.over_plain is not None
    assert (plain.over_plain.ratio.median, plain.over_plain.p) == (1, 1)
    assert (parallel.over_plain.ratio.low, parallel.over_plain.ratio.high) == (2, 2)
    assert (parallel.over_plain.wins, parallel.over_plain.p) == (3, 0.25)
    assert plain.user_speed.median == 4 / 4
    assert parallel.identical


def test_repeated_turns_of_a_prompt_are_one_pair_of_the_sign_test() -> None:
    ratios = ((0, 2), (1, 3), (0, 0.5), (1, 4), (0, 2), (1, 5))
    turns = [turn(plain=answer(at, ratio), parallel=answer(at, 1)) for at, ratio in ratios]
    (_, parallel) = figures_of([Level(1, turns)], [PLAIN, PARALLEL], PROMPTS, decode=decode)
    assert parallel.over_plain is not None
    assert (parallel.over_plain.ratio.median, parallel.turns) == (3, 6)
    assert (parallel.over_plain.wins, parallel.over_plain.losses, parallel.over_plain.p) == (2, 0, 0.5)


def test_rival_is_the_fastest_autoregressive_mode() -> None:
    turns = [turn(plain=answer(0, 8), parallel=answer(0, 1), slow=answer(0, 4), fast=answer(0, 2))]
    found = figures_of([Level(1, turns)], [PLAIN, PARALLEL, SLOW, FAST], PROMPTS, decode=decode)
    assert [each.over_autoregressive and each.over_autoregressive.ratio.median for each in found] == [0.25, 2, 0.5, 1]


def test_first_difference_is_named() -> None:
    turns = [
        turn(plain=answer(0, 1), parallel=answer(0, 1)),
        turn(plain=answer(1, 1), parallel=answer(1, 1, (5, 6, 70, 8, 9))),
    ]
    plain, parallel = figures_of([Level(1, turns)], [PLAIN, PARALLEL], PROMPTS, decode=decode)
    assert (plain.identical, plain.difference) == (True, None)
    assert parallel.identical is False
    assert parallel.difference == FirstDifference("second", 2, "7", "70")


def test_answer_that_ends_early_differs_at_its_end() -> None:
    turns = [turn(plain=answer(0, 1), parallel=answer(0, 1, TOKENS[:3]))]
    (_, parallel) = figures_of([Level(1, turns)], [PLAIN, PARALLEL], PROMPTS, decode=decode)
    assert parallel.difference == FirstDifference("first", 3, "8", "(end)")


def test_text_at_a_higher_concurrency_is_compared_with_the_first_plain_text() -> None:
    levels = [
        Level(1, [turn(plain=answer(0, 1))]),
        Level(2, [turn(plain=answer(0, 1, (5, 1, 7, 8, 9)))]),
    ]
    assert [each.identical for each in figures_of(levels, [PLAIN], PROMPTS, decode=decode)] == [True, False]


def test_text_is_compared_with_plain_decoding_at_the_same_temperature() -> None:
    sampled = (5, 1, 7, 8, 9)
    levels = [
        Level(1, [turn(plain=answer(0, 1), parallel=answer(0, 1, sampled))]),
        Level(1, [turn(plain=answer(0, 4, sampled), parallel=answer(0, 2, sampled))], 0.8),
    ]
    found = figures_of(levels, [PLAIN, PARALLEL], PROMPTS, decode=decode)
    named = [(each.temperature, each.mode, each.identical) for each in found]
    assert named == [
        (0.0, "plain", True),
        (0.0, PARALLEL.title, False),
        (0.8, "plain", True),
        (0.8, PARALLEL.title, True),
    ]
    assert [each.over_plain.ratio.median for each in found if each.over_plain] == [1, 1, 1, 2]


def test_only_temperature_of_a_run_is_not_named() -> None:
    levels = [Level(at_once, [turn(plain=answer(0, 1))], 0.8) for at_once in (1, 2)]
    assert [each.temperature for each in figures_of(levels, [PLAIN], PROMPTS)] == [None, None]


def test_figures_of_categories_are_those_of_their_prompts() -> None:
    turns = [
        turn(plain=answer(0, 1), parallel=answer(0, 2, accepted=(4, 2))),
        turn(plain=answer(1, 1), parallel=answer(1, 4, accepted=(0, 1))),
    ]
    (_, parallel) = figures_of([Level(1, turns)], [PLAIN, PARALLEL], PROMPTS, decode=decode)
    found = {each.category: each for each in parallel.categories}
    assert [found[name].tokens_per_second for name in ("code", "prose")] == [2, 1]
    assert [found[name].acceptance.length for name in ("code", "prose")] == [4, 1.5]
    assert parallel.acceptance == AcceptanceFigures.of([answer(0, 1, accepted=(4, 2, 0, 1)).acceptance])
    assert parallel.acceptance.rates == (0.75, 0.5, 0.25, 0.25)


def test_answers_without_a_speed_do_not_slow_down_their_category() -> None:
    burst = replace(answer(0, 0.0), pieces=())
    turns = [turn(plain=answer(0, 1)), turn(plain=burst), turn(plain=burst), turn(plain=replace(burst, prompt=1))]
    (plain,) = figures_of([Level(1, turns)], [PLAIN], PROMPTS, decode=decode)
    assert [(each.category, each.tokens_per_second) for each in plain.categories] == [("code", 4), ("prose", 0)]


def test_rounds_after_the_first_twenty_are_counted_apart() -> None:
    accepted = [4] * 20 + [1] * 5
    figures = AcceptanceFigures.of([answer(0, 1, accepted=accepted).acceptance])
    assert figures is not None
    assert (figures.later_rounds, figures.later_length, figures.rounds) == (5, 2, 25)
    early = AcceptanceFigures.of([answer(0, 1, accepted=accepted[:20]).acceptance])
    assert early is not None
    assert early.later_length is None
    assert AcceptanceFigures.of([None, Acceptance()]) is None


def test_turn_in_which_an_answer_has_one_token_has_no_speed() -> None:
    short = replace(answer(0, 0.0), tokens=1, token_ids=(5,), pieces=())
    turns = [turn(plain=answer(0, 1), parallel=short), turn(plain=answer(1, 1), parallel=answer(1, 0.5))]
    plain, parallel = figures_of([Level(1, turns)], [PLAIN, PARALLEL], PROMPTS, decode=decode)
    assert (plain.turns, plain.user_speed.median, parallel.user_speed.median) == (2, 4, 8)
    (only,) = figures_of([Level(1, [turn(plain=short)])], [PLAIN], PROMPTS, decode=decode)
    assert (only.user_speed.median, only.over_plain, only.inter_token) == (0, None, None)


def test_price_is_that_of_all_requests_together() -> None:
    (plain,) = figures_of([Level(1, [turn(plain=answer(0, 0.9))])], [PLAIN], PROMPTS, price_per_hour=3.6)
    assert plain.total_speed.median == 5
    assert plain.cost_per_million == pytest.approx(200)
    assert (plain.over_plain, plain.identical) == (None, None)


def test_price_counts_the_seconds_of_slow_turns() -> None:
    turns = [turn(plain=answer(0, seconds)) for seconds in (0.9, 0.9, 7.9)]  # and 0.1 for each prompt
    (plain,) = figures_of([Level(1, turns)], [PLAIN], PROMPTS, price_per_hour=3.6)
    assert plain.total_speed.median == 5
    assert plain.cost_per_million == pytest.approx(1e-3 * 10 / 15 * 1e6)


def test_server_that_does_not_tell_tokens_of_pieces_has_a_mean_per_answer() -> None:
    blind = replace(answer(0, 2), pieces=((0.5, 0), (1.5, 0)))
    (plain,) = figures_of([Level(1, [turn(plain=blind)])], [PLAIN], PROMPTS)
    assert plain.inter_token is not None
    assert plain.between_pieces is not None
    assert (plain.inter_token.p50, plain.between_pieces.p50) == (500, 1000)


def test_means_of_answers_count_once_per_token() -> None:
    long, short = (replace(answer(0, 1), tokens=tokens, pieces=((1.0, 0),)) for tokens in (101, 2))
    (plain,) = figures_of([Level(1, [turn(plain=long), turn(plain=short)])], [PLAIN], PROMPTS)
    assert plain.inter_token is not None
    assert (plain.inter_token.p50, plain.inter_token.curve[-1]) == (10, 1000)


def test_peer_has_no_time_per_token_because_its_pieces_do_not_state_their_tokens() -> None:
    other = DecodingMode.of_server("other", is_peer=True)
    both = turn(plain=answer(0, 1)) | {"other": ModeTurn((replace(answer(0, 2), pieces=((2.0, 0),)),), 2.1)}
    plain, peer = figures_of([Level(1, [both])], [PLAIN, other], PROMPTS, decode=decode)
    assert (plain.inter_token is None, peer.inter_token) == (False, None)
    assert peer.between_pieces is not None


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50))
def test_latency_curves_rise_from_the_shortest_to_the_longest(seconds: list[float]) -> None:
    figures = LatencyFigures.of(seconds)
    assert figures is not None
    assert list(figures.curve) == sorted(figures.curve)
    assert len(figures.curve) == 101
    assert (figures.curve[0], figures.curve[-1]) == pytest.approx((1000 * min(seconds), 1000 * max(seconds)), abs=1e-3)
    assert figures.p50 <= figures.p95 <= figures.p99


def test_nothing_measured_has_no_figures() -> None:
    assert figures_of([Level(1, [])], [PLAIN], PROMPTS) == []
    assert LatencyFigures.of([]) is None
    assert not math.isnan(LatencyFigures.of([1.0]).p99)
