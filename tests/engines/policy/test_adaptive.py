"""The adaptive K policy with known costs and acceptance: the K that it selects, and what that costs."""

from __future__ import annotations

import math
import random
import statistics
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines.policy.adaptive import _TOGETHER, Adaptive
from peagle.engines.policy.drafts_per_round import ObservedRound, RoundAhead, RoundRow, spaced_counts
from peagle.engines.policy.prior import Prior, measured, tokens_by_k

MAX = 8
CPU = (1.0, 1.3, 1.36, 1.42, 1.5, 1.58, 1.75, 2.0, 2.15)  # costs of rounds of the small model on two cores
FLAT = (1.0,) * (MAX + 1)
NONE = (0.0,) * MAX
CODE, PROSE, RANDOM = (0.75, 0.7, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45), (0.45, 0.4) + (0.3,) * 6, (0.002,) * MAX


@dataclass(eq=False)
class Text:
    """A text whose draft at each position is accepted so often; ``drafts`` wait to be verified.

    ``unread`` is what it costs a drafter to read what there is of it when it first drafts.
    """

    rates: Sequence[float]
    left: int
    drafts: int = 0
    unread: float = 0.0


@dataclass
class Machine:
    """Run texts with a policy or a fixed K; rounds cost what ``costs`` returns, and are observed with noise.

    ``turns`` are rates that all texts have from some round on. ``reading`` all texts of a round costs a drafter so much
    at first. ``after`` is what has been spent after each round.
    """

    costs: Sequence[float]
    policy: Adaptive | None = None
    k: int = 0
    noise: float = 0.0
    seed: int = 0
    spent: float = 0.0
    ks: list[int] = field(default_factory=list)
    turns: Mapping[int, Sequence[float]] = field(default_factory=dict)
    reading: float = 0.0
    after: list[float] = field(default_factory=list)

    def run(self, texts: Sequence[Sequence[float]], tokens: int, busy: int = 1) -> Machine:
        dice, waiting, rows, pace = random.Random(self.seed), list(texts), list[Text](), 0.0
        ahead = RoundAhead((), 0)
        while waiting or rows:
            while waiting and len(rows) < busy:
                rows.append(Text(waiting.pop(0), tokens, unread=self.reading / busy))
            for text in rows:
                text.rates = self.turns.get(len(self.ks), text.rates)
            if [row.text for row in ahead.rows] != rows:  # as the scheduler, which reuses it while requests run on
                ahead = RoundAhead([RoundRow(text, "peagle-chain") for text in rows], len(rows))
            k = self.k if self.policy is None else self.policy.choose(ahead)
            outcomes = [self._outcome(text, k, dice) for text in rows]
            verified = max(drafted for drafted, _ in outcomes)
            cost = (self.costs[verified] + self.costs[k]) / 2
            if k:
                cost += sum(text.unread for text in rows)
                for text in rows:
                    text.unread = 0.0
            self.spent, pace = self.spent + cost, 0.97 * pace + dice.gauss(0, 0.7 * self.noise)
            outlier = 3.0 if self.noise and dice.random() < 0.03 else 1.0
            seconds = 0.005 * cost * math.exp(pace + dice.gauss(0, self.noise)) * outlier
            if self.policy is not None:
                self.policy.learn(ObservedRound(ahead, k, outcomes, seconds))
            self.ks.append(k)
            self.after.append(self.spent)
            rows = [text for text in rows if text.left > 0]
        return self

    @staticmethod
    def _outcome(text: Text, k: int, dice: random.Random) -> tuple[int, Sequence[int]]:
        drafted, text.drafts = min(text.drafts, k), k
        accepted = 0
        while accepted < drafted and dice.random() < text.rates[accepted]:
            accepted += 1
        text.left -= accepted + 1
        return drafted, range(accepted)


def adaptive(start: int = 4) -> Adaptive:
    return Adaptive(start, MAX)


@pytest.mark.parametrize("busy", [1, 4])
def test_a_random_head_never_costs_more_than_three_percent(busy: int) -> None:
    """Whatever the noise: drafts that bring nothing end, even if they seem to cost nothing."""
    texts = [RANDOM] * 20
    plain = Machine(CPU).run(texts, 96, busy).spent
    spent = [Machine(CPU, adaptive(), noise=0.1, seed=seed).run(texts, 96, busy).spent for seed in range(20)]
    assert max(spent) < 1.03 * plain


@pytest.mark.parametrize(("texts", "lost"), [([CODE] * 20, 1.15), ([PROSE] * 20, 1.1), ([CODE, PROSE] * 10, 1.15)])
def test_best_k_is_found(texts: list[Sequence[float]], lost: float) -> None:
    """Compared with the best fixed K, which is not known in advance; noise and learning included."""
    best = min(sum(Machine(CPU, k=k, seed=seed).run(texts, 96).spent for seed in range(3)) for k in range(MAX + 1))
    found = sum(Machine(CPU, adaptive(), noise=0.1, seed=seed).run(texts, 96).spent for seed in range(3))
    assert found < lost * best


@pytest.mark.parametrize("rates", [CODE, PROSE, RANDOM])
def test_only_the_given_counts_are_chosen_and_the_best_of_them_is_found(rates: Sequence[float]) -> None:
    counts, texts = (0, 1, 2, 4, 8), [rates] * 20
    policy = Adaptive(4, MAX, counts=counts)
    found = Machine(CPU, policy, noise=0.1).run(texts, 96)
    assert set(found.ks) <= set(policy.counts) == set(counts)
    assert found.spent < 1.15 * min(Machine(CPU, k=k).run(texts, 96).spent for k in counts)


def test_the_first_k_and_none_are_always_among_the_counts() -> None:
    assert Adaptive(3, MAX, counts=(2, 8)).counts == (0, 2, 3, 8)
    assert Adaptive(3, MAX).counts == tuple(range(MAX + 1))


@given(st.integers(0, 70))
def test_spaced_counts_are_few_and_close(most: int) -> None:
    counts = spaced_counts(most)
    assert counts[0] == 0
    assert counts[-1] == most
    assert all(after <= max(2 * before, before + 1) for before, after in pairwise(counts))
    assert len(counts) <= most.bit_length() + 2


def test_cheap_accepted_drafts_raise_k_to_the_limit() -> None:
    ks = Machine(FLAT, adaptive(1)).run([(1.0,) * MAX], 2000).ks
    assert sum(k == MAX for k in ks[50:]) > 0.8 * len(ks[50:])


def test_drafts_that_are_never_accepted_end_and_are_tried_rarely() -> None:
    ks = Machine(CPU, adaptive()).run([(0.0,) * MAX], 8000).ks
    assert max(ks[40:]) <= 2
    early, late = sum(k > 0 for k in ks[:1000]), sum(k > 0 for k in ks[4000:])
    assert 0 < late / 4000 < 0.02 < early / 1000


def test_a_text_that_changes_is_followed_both_ways() -> None:
    ks = Machine(CPU, adaptive(), turns={200: RANDOM, 600: CODE}).run([CODE], 3000).ks
    assert sum(k == 0 for k in ks[300:600]) > 270
    assert sum(k > 2 for k in ks[-200:]) > 150


def test_noise_alone_does_not_change_k() -> None:
    """Two K within a few percent of each other, seen through noise: it stays with one for long."""
    ks = Machine(CPU, adaptive(), noise=0.15).run([CODE] * 40, 96).ks[200:]
    stays = [k for k in ks if k]
    changes = sum(a != b for a, b in pairwise(stays))
    assert changes < len(stays) / 8  # two of each probe of four among them


@settings(max_examples=25, deadline=None)
@given(
    start=st.integers(0, 5),
    costs=st.lists(st.floats(1e-9, 1e6), min_size=6, max_size=6),
    texts=st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=1, max_size=5),
    busy=st.integers(1, 3),
    noise=st.floats(0, 2),
)
def test_k_stays_within_the_limit_and_is_deterministic(
    start: int, costs: list[float], texts: list[list[float]], busy: int, noise: float
) -> None:
    runs = [Machine(costs, Adaptive(start, 5), noise=noise, seed=7).run(texts, 40, busy).ks for _ in range(2)]
    assert runs[0] == runs[1]
    assert all(0 <= k <= 5 for k in runs[0])


def test_rounds_that_could_not_be_timed_teach_acceptance_alone() -> None:
    policy, text = adaptive(), Text(RANDOM, 0)
    ahead = RoundAhead([RoundRow(text, "peagle-chain")], 1)
    for _ in range(40):
        policy.learn(ObservedRound(ahead, policy.choose(ahead), [(policy.choose(ahead), [])], None))
    assert policy.choose(ahead) <= 2


def of_a_build(rates: Sequence[float], costs: Sequence[float] = CPU) -> Adaptive:
    """A policy that begins with what a build measured of drafts that are accepted as often as this."""
    chained = [math.prod(rates[: number + 1]) for number in range(MAX)]
    prior = measured(tokens_by_k(chained), costs, MAX)
    return Adaptive(prior.best, MAX, prior, "peagle-chain")


def test_short_answers_start_with_the_measured_best_k() -> None:
    texts, fixed = [CODE] * 4, range(MAX + 1)
    best = min(sum(Machine(CPU, k=k, seed=seed).run(texts, 32).spent for seed in range(8)) for k in fixed)
    found, guessed = (
        sum(Machine(CPU, policy(), noise=0.1, seed=seed).run(texts, 32).spent for seed in range(8))
        for policy in (lambda: of_a_build(CODE), lambda: adaptive(2))
    )
    assert found < 1.05 * best
    assert found < guessed


def test_a_head_that_the_build_saw_fail_is_not_tried_at_first() -> None:
    ks = Machine(CPU, of_a_build(RANDOM), noise=0.1).run([RANDOM] * 4, 96, 4).ks
    assert sum(k > 0 for k in ks[:20]) <= 4


def test_rounds_of_several_rows_start_with_the_k_measured_for_them() -> None:
    """A drafter reads its weights once for all rows, so drafts of four rows may cost less than the guess from one."""
    chained = [math.prod(CODE[: number + 1]) for number in range(MAX)]
    costs = [1.0] + [1.2 + 0.1 * k for k in range(1, MAX + 1)]
    several = {
        2: [1.0, *[1.3 + 0.2 * k for k in range(1, MAX + 1)]],
        4: [1.0, 1.3, *[1.9 + k for k in range(MAX - 1)]],
    }
    prior = measured(tokens_by_k(chained), costs, MAX, several)
    policy = Adaptive(prior.best, MAX, prior, "peagle-chain")
    rows = [RoundRow(Text(CODE, 0), "peagle-chain") for _ in range(8)]
    chosen = [policy.choose(RoundAhead(rows[:many], many)) for many in (1, 2, 3, 4, 8)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] == prior.best > chosen[1] > chosen[3] == 1
    assert Adaptive(3, MAX, prior, "peagle-chain", counts=(4, 8)).choose(RoundAhead(rows[:4], 4)) in (0, 3, 4)


def test_texts_that_are_left_when_others_end_are_drafted_for_some_rounds_later() -> None:
    """The drafter would first read all that it missed, and these texts may soon end too; a new text is not waited with.

    Drafts pay off for up to three texts, and not for four.
    """
    chained = [math.prod(CODE[: number + 1]) for number in range(MAX)]
    prior = measured(tokens_by_k(chained), CPU, MAX, {3: CPU, 4: [1.0, *(2.0 + k for k in range(MAX))]})
    policy = Adaptive(prior.best, MAX, prior, "peagle-chain")
    rows = [RoundRow(Text(CODE, 0), "peagle-chain") for _ in range(5)]

    def round_of(texts: Sequence[RoundRow]) -> int:
        ahead = RoundAhead(texts, len(texts))
        k = policy.choose(ahead)
        policy.learn(ObservedRound(ahead, k, [(0, ())] * len(texts), 0.005))
        return k

    assert [round_of(rows[:4]) for _ in range(3)] == [0] * 3
    later = [round_of(rows[1:4]) for _ in range(10)]
    assert later[:8] == [0] * 8
    assert all(later[8:])
    assert [round_of(rows[:4]) for _ in range(3)] == [0] * 3
    policy._running.append(id(rows[4].text))  # a new text may have the identity of one that has ended
    assert round_of([*rows[1:3], rows[4]]) > 0


def test_texts_are_not_drafted_while_others_join_with_which_drafts_do_not_pay() -> None:
    """The drafter would read prompts for a few rounds only. A text that is being drafted goes on.

    Drafts pay off for up to three texts, and not for four.
    """
    chained = [math.prod(CODE[: number + 1]) for number in range(MAX)]
    prior = measured(tokens_by_k(chained), CPU, MAX, {3: CPU, 4: [1.0, *(2.0 + k for k in range(MAX))]})
    rows = [RoundRow(Text(CODE, 0), "peagle-chain") for _ in range(5)]

    def chosen(policy: Adaptive, texts: Sequence[RoundRow], joining: Sequence[int]) -> list[int]:
        ks = list[int]()
        for others in joining:
            ahead = RoundAhead(texts, len(texts), joining=others)
            ks.append(policy.choose(ahead))
            policy.learn(ObservedRound(ahead, ks[-1], [(0, ())] * len(texts), 0.005))
        return ks

    first, later = (Adaptive(prior.best, MAX, prior, "peagle-chain") for _ in range(2))
    assert chosen(first, rows[:1], [3] * 12) == [0] * 12
    assert all(chosen(first, rows[:1], [2, 2, 0]))
    assert all(chosen(later, rows[:1], [0, 3, 3, 0]))
    assert chosen(later, rows[:4], [0] * 3) == [0] * 3
    assert chosen(later, rows[4:], [3] * 12) == [0] * 12, "a new text, after rounds without drafts"


@given(st.integers(1, 20), st.lists(st.floats(1, 3), min_size=MAX, max_size=MAX))
def test_costs_between_measured_numbers_of_rows_are_between_their_costs(rows: int, more: list[float]) -> None:
    prior = measured([1.0] * (MAX + 1), CPU, MAX, {4: [1.0, *more], 8: [1.0, *(2 * each for each in more)]})
    below, above = max(each for each in (1, 4, 8) if each <= rows), min(each for each in (1, 4, 8, 99) if each >= rows)
    costs = prior.costs_of(rows)
    assert costs[0] == 1
    assert prior.knows(rows) == (rows <= 8)
    if rows <= 8:
        ends = zip(prior.costs_of(below), prior.costs_of(above), costs, strict=True)
        assert all(min(a, b) - 1e-9 <= cost <= max(a, b) + 1e-9 for a, b, cost in ends)
    else:
        assert all(a <= b for a, b in zip(prior.costs_of(8), costs, strict=True))


def test_single_row_measurement_is_not_used_for_batches() -> None:
    """Each row has its own columns, so a draft costs four times as much in a round of four rows."""
    policy = of_a_build(PROSE)
    rows = [RoundRow(Text(PROSE, 0), "peagle-chain") for _ in range(4)]
    assert policy.choose(RoundAhead(rows, 4)) < policy.choose(RoundAhead(rows[:1], 1))


@settings(max_examples=10, deadline=None)
@given(
    costs=st.lists(st.floats(1.0, 3.0), min_size=MAX, max_size=MAX).map(sorted),
    busy=st.sampled_from([1, 2, 4]),
    tokens=st.sampled_from([96, 400, 2000]),
    reading=st.floats(0.0, 3.0),
    seed=st.integers(0, 99),
)
def test_measured_bad_drafts_cost_almost_nothing(
    costs: list[float], busy: int, tokens: int, reading: float, seed: int
) -> None:
    """Whatever drafts cost that are never accepted, up to three times a round; what a drafter reads included."""
    machine = Machine((1.0, *costs), of_a_build(NONE, (1.0, *costs)), noise=0.1, seed=seed, reading=reading)
    machine.run([NONE] * (2000 * busy // tokens + busy), tokens, busy)
    assert machine.after[399] < 1.04 * 400
    assert machine.after[1999] < 1.02 * 2000


@pytest.mark.parametrize("busy", [1, 4])
def test_drafts_that_start_to_pay_are_found_within_hundreds_of_rounds(busy: int) -> None:
    def found(seed: int) -> int:
        machine = Machine(CPU, of_a_build(NONE), noise=0.1, seed=seed, reading=3.0)
        before = len(machine.run([NONE] * (10 * busy), 96, busy).ks)
        ks = machine.run([CODE] * (16 * busy), 96, busy).ks[before:]
        return next((at for at in range(len(ks) - 8) if all(ks[at : at + 8])), len(ks))

    rounds = sorted(found(seed) for seed in range(9))
    assert rounds[4] <= 500
    assert rounds[6] <= 1000


@pytest.mark.parametrize("wrong", [RANDOM, CODE])
def test_outdated_measurements_are_forgotten(wrong: Sequence[float]) -> None:
    """An engine that was built on another machine, or serves other texts."""
    costs = tuple(1.0 + 1.5 * k for k in range(MAX + 1)) if wrong is RANDOM else FLAT
    right = CODE if wrong is RANDOM else RANDOM

    def share(seed: int) -> float:
        ks = Machine(CPU, of_a_build(wrong, costs), noise=0.05, seed=seed).run([right], 16000).ks
        late = ks[len(ks) // 2 :]
        return sum((k > 2) == (right is CODE) for k in late) / len(late)

    assert statistics.median(share(seed) for seed in range(7)) > 0.9


def test_no_guess_of_costs_is_for_ever() -> None:
    """Of a machine on which drafts seem to cost as much as rounds of their own: a probe is never too dear."""
    steep = Prior(tuple(0.5 ** (k + 1) for k in range(MAX)), tuple(1.0 + 4 * k for k in range(MAX + 1)), 10.0, 0.5)
    ks = Machine(FLAT, Adaptive(0, MAX, steep, "peagle-chain")).run([(1.0,) * MAX], 4000).ks
    assert sum(k >= 4 for k in ks[-100:]) > 80


@given(
    tokens=st.lists(st.floats(1, 9), min_size=1, max_size=MAX + 1),
    costs=st.lists(st.floats(0.01, 100), min_size=MAX + 1, max_size=MAX + 1),
)
def test_prior_is_always_valid(tokens: list[float], costs: list[float]) -> None:
    prior = measured(tokens, costs[: len(tokens)], MAX)
    assert len(prior.rates) == MAX
    assert all(0 < less <= more <= 1 for more, less in pairwise(prior.rates))
    assert prior.costs[0] == 1
    assert all(less <= more for less, more in pairwise(prior.costs))
    assert 0 <= prior.best <= MAX


@pytest.mark.parametrize("best", range(1, MAX + 1))
def test_initial_guess_is_the_build_k(best: int) -> None:
    policy = adaptive(best)
    values = policy.values(RoundAhead([RoundRow(Text(CODE, 0), "peagle-chain")], 1))
    assert max(values) < 1.1 * values[best]


def test_columns_verified_for_other_rows_are_free() -> None:
    policy, texts = adaptive(2), [Text(PROSE, 0) for _ in range(2)]
    alone, beside = (
        RoundAhead([RoundRow(texts[0], "peagle-chain")], 1),
        RoundAhead([RoundRow(texts[1], "peagle-chain")], 2, min_drafts=5),
    )
    values = policy.values(alone), policy.values(beside)
    assert values[1].index(max(values[1])) >= values[0].index(max(values[0]))
    assert values[1][5] > values[1][0]


def test_forced_drafts_are_verified_when_they_pay() -> None:
    def reach(*forced: int, trust: float = 0.9, costs: Sequence[float] = CPU, k: int = 0) -> int:
        policy = Adaptive(k, MAX, measured([1.0] * (MAX + 1), costs, MAX), "peagle-chain")
        rows = [RoundRow(Text(RANDOM, 0), "peagle-chain", each, trust) for each in forced]
        return policy.reach(RoundAhead(rows, len(rows)), k)

    assert reach(0) == 0
    assert reach(5) == 5
    assert reach(2, k=4) == 4, "no round is made narrower"
    assert reach(5, trust=0.02) == 0
    assert reach(5, costs=[1.0 + 3 * k for k in range(MAX + 1)]) == 0
    assert reach(8, 0, 0, 0) == 0, "three others would pay for the columns of one"
    assert reach(8, 8, 8, 8) > 3


def test_wider_round_is_not_counted_for_its_k() -> None:
    policy, ahead = adaptive(), RoundAhead([RoundRow(Text(RANDOM, 0), "peagle-chain")], 1)
    before = [policy.values(ahead) for _ in range(30) if policy.learn(ObservedRound(ahead, 0, [(0, ())], 1.0)) is None][
        -1
    ]
    for _ in range(30):
        policy.learn(ObservedRound(ahead, 0, [(0, ())], 9.0, widest=6))
    assert policy.values(ahead) == before


def test_choosing_twice_is_choosing_once() -> None:
    policy, ahead = adaptive(), RoundAhead([RoundRow(Text(CODE, 0), "peagle-chain")], 1)
    assert len({policy.choose(ahead) for _ in range(5)}) == 1


def test_initial_k_without_room_is_rejected() -> None:
    with pytest.raises(ValueError, match="not 9"):
        Adaptive(9, MAX)


def test_rounds_without_drafts_are_learned_together_but_those_of_other_texts_at_once() -> None:
    policy, text = of_a_build(NONE), Text(RANDOM, 0)

    def round_of(ahead: RoundAhead) -> float:
        """Return the savings that a round adds."""
        saved = policy._account
        assert policy.choose(ahead) == 0
        policy.learn(ObservedRound(ahead, 0, [(0, ())] * len(ahead.rows), 0.005))
        return policy._account - saved

    one = RoundAhead([RoundRow(text, "peagle-chain")], 1)
    first, *rest = (round_of(one) for _ in range(1 + 2 * _TOGETHER))
    assert rest == [pytest.approx(share * first) for share in 2 * [*[0] * (_TOGETHER - 1), _TOGETHER]]
    assert [round_of(one) for _ in range(2)] == [0, 0]
    two = RoundAhead([*one.rows, RoundRow(Text(RANDOM, 0), "peagle-chain")], 2)
    assert round_of(two) > 2 * first


def test_a_text_that_has_ended_is_not_kept() -> None:
    """Texts are requests, which refer to their policy: only the cyclic garbage collector would free them."""
    policy, text = adaptive(), Text(CODE, 0)
    ahead = RoundAhead([RoundRow(text, "peagle-chain")], 1)
    policy.learn(ObservedRound(ahead, policy.choose(ahead), [(4, range(2))], 0.005))
    held = weakref.ref(text)
    del text, ahead
    assert held() is None


def test_a_new_text_with_the_identity_of_one_that_has_ended_is_new() -> None:
    policy, others = adaptive(), list[Text]()

    def values(text: Text) -> Sequence[float]:
        return policy.values(RoundAhead([RoundRow(text, "peagle-chain")], 1))

    def rejected() -> int:
        text = Text(RANDOM, 0)
        for _ in range(20):
            policy.learn(ObservedRound(RoundAhead([RoundRow(text, "peagle-chain")], 1), 4, [(4, range(1))], 0.005))
        assert values(text) != values(Text(RANDOM, 0))
        return id(text)

    identity = rejected()
    while not others or (id(others[-1]) != identity and len(others) < 10_000):
        others.append(Text(RANDOM, 0))
    assert id(others[-1]) == identity
    assert values(others[-1]) == values(Text(RANDOM, 0))


def learned_rates(policy: Adaptive, accepted: Mapping[int, int], rounds: int = 60) -> None:
    """Report texts in turn, with prompts of these lengths, and so many accepted drafts of four in every round."""
    for _ in range(6):
        for length, many in accepted.items():
            ahead = RoundAhead([RoundRow(Text(CODE, 0), "peagle-chain", prompt_tokens=length)], 1)
            for _ in range(rounds):
                policy.learn(ObservedRound(ahead, 4, [(4, range(many))], 0.005))


def best_of_new(policy: Adaptive, length: int) -> int:
    values = policy.values(RoundAhead([RoundRow(Text(CODE, 0), "peagle-chain", prompt_tokens=length)], 1))
    return max(range(5), key=values.__getitem__)


def test_a_new_text_is_expected_to_be_like_those_of_similar_length() -> None:
    policy = adaptive()
    learned_rates(policy, {100: 4, 7000: 0})
    assert [best_of_new(policy, length) for length in (20, 500, 3000, 7900)] == [4, 4, 0, 0]


@pytest.mark.parametrize(("accepted", "best"), [(4, 4), (0, 0)])
def test_a_text_of_a_new_length_is_expected_to_be_like_all_others(accepted: int, best: int) -> None:
    policy = adaptive()
    learned_rates(policy, {100: accepted})
    assert best_of_new(policy, 7000) == best
