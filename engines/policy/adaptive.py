"""Chooses K for every round to maximize expected tokens per second, estimated from previous rounds.

    value(K) = sum over texts of (1 + q_1 + ... + q_K) / seconds of a round of K

q_j is the acceptance rate of the j-th draft, in a chain or a tree: of this text if known, else of texts with prompts of
similar length, else of all texts. The K with the highest value is chosen, including 0, if it is better than the current
one by a margin. With drafts, the drafter also reads every prompt, outside of the rounds; values of K > 0 are therefore
reduced by a small share.

The value of an untested K is unknown, so a few rounds are sometimes a probe: with a few drafts if nothing is drafted,
otherwise with a neighbouring K or none. Probes have a budget. A small share of every round is saved; a probe runs when
the savings cover its expected loss, and its actual loss is deducted. Each probe halves the share, a new text doubles
it, and a change of K or a probe that went better than expected restores it. A useless drafter therefore costs its first
few rounds and then that share. If nothing is drafted, a probe is one round that drafts, which may have to read a
prompt, and two that verify; it continues while drafts are accepted. If drafts would not pay even in a text that is far
easier to draft than the others, only every other one of these probes runs.

The policy depends only on the rounds that are reported to it. It uses no clock and no random numbers. Passes evict its
code and data from the processor's caches, so even a few calls take a hundredth of a round of the smallest models. While
nothing is drafted, eight rounds are therefore learned at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary, ref

from .acceptance_rates import AcceptanceRates, multiplied, new_rates, rates_of_alike, rates_of_all, rates_of_text
from .drafts_per_round import ObservedRound, RoundAhead
from .prior import Prior, guessed, tokens_by_k
from .round_costs import RoundCosts

MORE, FEWER = 1.05, 1.03  # required improvement for a K of more drafts, or of fewer
DWELL = 6  # minimum rounds between changes of K
_WEIGH = 4  # rounds between two comparisons of all K, which take a hundredth of a round of the smallest models
SHARE, MIN_SHARE = 0.015, 0.00375  # share of a round that is saved for probes
PROMPTS = 1.02  # time of a text with drafts in which nothing is gained, relative to none: its prompt is read twice
ON_SHARE, OFF_SHARE = 0.5, 0.8  # factors of that share while drafts are made, and while none are
_FIRST, _MAX_SAVED = 3.0, 4.0  # initial savings, if nothing was measured, and maximum savings, in rounds
_MAX_DEBT = 16.0  # rounds; limit of the debt after an expensive probe
_PROBE, _MIN_PRICE = 4, 0.25  # rounds of a probe, and its minimum price in rounds
_LOOK, _READING = 3, 1.5  # rounds of a probe while nothing is drafted; assumed extra cost of its prompt reading
_SURPRISE_FACTOR = 1.1  # a probe this much better than expected is a surprise
_PROBED = 2  # drafts of a probe while nothing is drafted
_EASIER_ODDS = 8.0  # factor of the odds of acceptance in a text that is far easier to draft than the others
_RARE_PROBES = 2  # one in so many probes runs if drafts would not even pay in such a text
_TOGETHER = 8  # rounds without drafts that are learned at once
_WAIT = 8  # rounds without drafts after texts have ended, even if the fewer texts that are left would gain from drafts
_CARRIED_WEIGHT = 2.0  # weight, in ratios, of costs carried over from rounds of another kind


@dataclass
class _Probe:
    """A probe: ``rounds`` rounds of ``k`` drafts for these ``texts``, with value ``expected`` relative to the current
    K.

    They are expected to yield ``brings`` times the tokens. ``price`` is the expected cost of the drafts and ``lost``
    the actual one, in rounds of the current K, both net of the tokens gained.
    """

    k: int
    rounds: int
    texts: list[int]
    expected: float
    brings: float
    price: float = 0.0
    lost: float = 0.0


class _KindStats:
    """Statistics of rounds of one kind (number of rows and draft method), and their current K."""

    def __init__(self, k: int, costs: RoundCosts, busy: int) -> None:
        self.k, self.costs, self.busy = k, costs, max(busy, 1)
        self.since = 0  # rounds since K changed
        self.weighed: object = None  # the time and the texts of the last comparison of all K
        self.known: object = None  # what ``best`` was computed from
        self.best = k
        self.probe: _Probe | None = None
        self.probed: dict[int, int] = {}  # K -> number of probes
        self.price = _MIN_PRICE  # of the next probe, in rounds
        self.looked = _READING  # extra cost of a probe while nothing is drafted
        self.covered = 0  # number of such probes that the savings covered

    def change(self, k: int) -> None:
        self.k, self.since, self.probe, self.price = k, 0, None, _MIN_PRICE
        self.weighed = self.known = None


class Adaptive:
    """A policy that drafts as much as pays off, from 0 up to ``max_drafts`` drafts. One per engine."""

    def __init__(
        self,
        start: int,
        max_drafts: int,
        prior: Prior | None = None,
        method: str = "",
        counts: Sequence[int] | None = None,
    ) -> None:
        """``start`` is the K of the first round; ``prior`` is the initial knowledge about ``method``.

        ``counts`` are the K to choose among, besides 0 and ``start``; None for every K up to ``max_drafts``.
        """
        if not 0 <= start <= max_drafts:
            raise ValueError(f"start must be at most {max_drafts}, not {start}")
        self.max_drafts = max_drafts
        self.counts = tuple(sorted({0, start, *(range(max_drafts + 1) if counts is None else counts)}))
        self._start = start
        self._guess = guessed(start, max_drafts)
        self._prior, self._of = prior or self._guess, method
        self._all: dict[object, AcceptanceRates] = {}  # by method name, and by method and length
        self._texts: WeakKeyDictionary[object, AcceptanceRates] = WeakKeyDictionary()
        self._stats: dict[object, _KindStats] = {}
        self._last: _KindStats | None = None
        self._is_idle, self._wait = False, 0  # whether the last round had no drafts; rounds of ``_WAIT`` that are left
        # Of the last round, whose requests may have ended and refer to this policy.
        self._found = ref(RoundAhead((), 0)), _KindStats(start, RoundCosts([1.0], 1.0), 1)
        self._running: list[int] = []
        self._at_rest: ref[RoundAhead] | None = None  # rounds of this kind have no drafts, and are learned later
        self._unlearned: list[float] = []  # seconds of these
        self._num_counted = 0  # outcomes that rates were learned from
        self._share, self._account = SHARE, 0.0 if self._prior.is_measured else _FIRST

    def choose(self, ahead: RoundAhead) -> int:
        """Return K of this round: the probe's, else the current one, unless another is better by a margin."""
        if self._rests(ahead):
            return 0
        if self._waits_for_prompts(ahead):
            return 0
        stats = self._stats_of(ahead)
        if self._waits_after_ends(ahead, stats):
            return 0
        if stats.probe is not None and stats.probe.texts == ahead.texts:
            return stats.probe.k
        if stats.since < DWELL:
            return stats.k
        now = stats.since // _WEIGH, ahead.texts
        if stats.weighed != now:
            stats.weighed = now
            known = ahead.texts, self._num_counted, stats.costs.num_ratios
            if stats.known != known:
                stats.known, stats.best = known, self._best(ahead, stats)
        return stats.best

    def _waits_after_ends(self, ahead: RoundAhead, stats: _KindStats) -> bool:
        """Return True if texts have just ended and nothing was drafted for the others, which may soon end too.

        Before it drafts again, the drafter must read all tokens that it missed.
        """
        if stats is self._last:
            return self._wait > 0
        return self._is_idle and stats.k > 0 and all(row.text in self._texts for row in ahead.rows)

    def _waits_for_prompts(self, ahead: RoundAhead) -> bool:
        """Return True if nothing was drafted for these texts, and nothing will be once others have joined them.

        The drafter would read their prompts for a few rounds only.
        """
        if not ahead.joining or not (self._is_idle or all(row.text not in self._texts for row in ahead.rows)):
            return False
        return self._stats_of(replace(ahead, busy=ahead.busy + ahead.joining)).k == 0

    def _best(self, ahead: RoundAhead, stats: _KindStats) -> int:
        """Return the K with the highest value, or the current one if no other is better by a margin.

        K becomes 0 if drafts bring less than this margin, whatever they seem to cost: they are never free.
        """
        tokens = self._tokens(ahead)
        if stats.k and tokens[stats.k] < FEWER * tokens[0]:
            return 0
        values = self._valued(tokens, stats.costs.shape(), ahead.min_drafts)
        best = max(self.counts, key=values.__getitem__)
        margin = MORE if best > stats.k else FEWER
        return best if values[best] > margin * values[stats.k] else stats.k

    def reach(self, ahead: RoundAhead, k: int) -> int:
        """Return the window size with the most tokens per second if grammars may fill it.

        Forced drafts need no drafter pass.

        Their columns are costed like rounds of as many drafts, which is an upper bound.
        """
        if all(row.forced <= k for row in ahead.rows):
            return k
        certain = [row for row in ahead.rows if row.forced]
        others = replace(ahead, rows=[row for row in ahead.rows if not row.forced])
        costs, expected = self._stats_of(ahead).costs, self._tokens(others)[k]

        def value(drafts: int) -> float:
            forced = sum(1 + row.trust * min(row.forced, drafts) for row in certain)
            return (expected + forced) / costs.ratio(max(drafts, ahead.min_drafts))

        return max((each for each in self.counts if each >= k), key=value)

    def learn(self, observed: ObservedRound) -> None:
        """Count the accepted drafts, time the round, and start a probe if the savings cover it."""
        if self._is_put_off(observed):
            return
        self._learn_unlearned()
        stats = self._stats_of(observed.ahead)
        waited = observed.k == 0 and self._waits_for_prompts(observed.ahead)
        if observed.k == 0 and self._waits_after_ends(observed.ahead, stats):
            self._wait, waited = (self._wait if stats is self._last else _WAIT) - 1, True
        else:
            self._wait = 0
        self._last, self._is_idle = stats, observed.k == 0
        self._count(observed, stats)
        stats.since += 1
        if stats.probe is not None and stats.probe.texts != self._running:
            self._pay(stats, stats.probe)  # a text has ended, and the probe with it
        if stats.probe is not None and observed.k == stats.probe.k:
            stats.probe.lost += self._lost(observed, stats)
        if (
            observed.seconds is not None and observed.verified == observed.k
        ):  # otherwise the drafts were made for another K
            stats.costs.add(observed.k, observed.seconds)
        if stats.probe is not None and observed.k == stats.probe.k:
            stats.probe.rounds -= 1
            if stats.probe.rounds <= 0:
                self._end(stats, stats.probe, observed.ahead)
        elif waited:
            pass
        elif observed.k == stats.k:
            self._save(stats)
            self._probe_if_covered(stats, observed.ahead)
            if stats.k == 0 and stats.probe is None and stats.since >= DWELL and self.choose(observed.ahead) == 0:
                self._at_rest = ref(observed.ahead)
        elif self.choose(observed.ahead) == observed.k:  # otherwise it was launched before the last probe ended
            stats.change(observed.k)
            self._share = SHARE

    def _rests(self, ahead: RoundAhead) -> bool:
        """Return True if nothing is drafted for these texts until the next round is learned."""
        return self._at_rest is not None and self._at_rest() is ahead

    def _is_put_off(self, observed: ObservedRound) -> bool:
        """Return True if the round had no drafts, like those before it, and is learned with a later one."""
        if observed.k or not self._rests(observed.ahead):
            return False
        if observed.seconds is None or len(self._unlearned) == _TOGETHER - 1:
            return False
        self._unlearned.append(observed.seconds)
        return True

    def _learn_unlearned(self) -> None:
        """Time the rounds that were put off, and save a share of each."""
        self._at_rest = None
        if self._last is None or not self._unlearned:
            return
        for seconds in self._unlearned:
            self._last.costs.add(0, seconds)
        self._last.since += len(self._unlearned)
        self._save(self._last, len(self._unlearned))
        self._unlearned.clear()

    def values(self, ahead: RoundAhead) -> list[float]:
        """Return the expected value of each K = 0 .. ``max_drafts``: tokens per second, up to a common factor."""
        return self._valued(self._tokens(ahead), self._stats_of(ahead).costs.shape(), ahead.min_drafts)

    @staticmethod
    def _valued(tokens: Sequence[float], costs: Sequence[float], min_drafts: int) -> list[float]:
        return [expected / costs[max(k, min_drafts)] / (PROMPTS if k else 1.0) for k, expected in enumerate(tokens)]

    def _tokens(self, ahead: RoundAhead, odds: float = 1.0) -> list[float]:
        """Return the expected tokens of a round of each K, with the odds of acceptance multiplied by ``odds``."""
        of_all = {row.method: rates_of_all(self._rates(row.method), self._before(row.method)) for row in ahead.rows}
        of_alike = {row.alike: rates_of_alike(self._rates(row.alike), of_all[row.method]) for row in ahead.rows}
        expected = [0.0] * (self.max_drafts + 1)
        for row in ahead.rows:
            text, common = self._texts.get(row.text), of_alike[row.alike]
            rates = multiplied(rates_of_text(text, common) if text else common, odds)
            for k, tokens in enumerate(tokens_by_k(rates)):
                expected[k] += tokens
        return expected

    def _count(self, observed: ObservedRound, stats: _KindStats) -> None:
        if observed.ahead.texts != self._running:
            self._running = observed.ahead.texts
            stats.costs.begin()
            for row in observed.ahead.rows:
                self._rates_of(row.text)
        for row, (drafted, accepted) in zip(observed.ahead.rows, observed.outcomes, strict=True):
            if drafted:
                self._num_counted += 1
                self._rates_of(row.text).add(drafted, accepted)
                self._rates(row.method).add(drafted, accepted)
                self._rates(row.alike).add(drafted, accepted)

    def _rates_of(self, text: object) -> AcceptanceRates:
        """Return the rates of a text. A new one can have the identity of one that has ended."""
        rates = self._texts.get(text)
        if rates is None:
            rates = self._texts[text] = new_rates(self.max_drafts, of_text=True)
            self._share = min(2 * self._share, SHARE)
        return rates

    def _save(self, stats: _KindStats, rounds: int = 1) -> None:
        """Save a share of every round."""
        share = self._share * (ON_SHARE if stats.k else OFF_SHARE)
        self._account = min(self._account + rounds * share, _MAX_SAVED)

    def _probe_if_covered(self, stats: _KindStats, ahead: RoundAhead) -> None:
        """Start a probe if the savings cover it."""
        is_off = stats.k == 0
        if stats.since < DWELL or self._account < stats.price or self.max_drafts == 0:
            return
        k, values = self._candidate(stats), self.values(ahead)
        rounds, ratio = (_LOOK if is_off else _PROBE), stats.costs.ratio(k) / stats.costs.ratio(stats.k)
        after = float(k == 0)  # the round after one without drafts has none to verify
        price = rounds * max(1 - values[k] / values[stats.k], 0.0) * ratio
        stats.price = min(max(price + (stats.looked if is_off else after), _MIN_PRICE), _MAX_SAVED)
        if self._account >= stats.price:
            stats.covered += is_off
            if is_off and stats.covered % _RARE_PROBES and not self._may_pay_off(stats, ahead):
                self._account -= stats.price
                return
            stats.price = _MIN_PRICE
            expected, brings = values[k] / values[stats.k], self._expected_tokens(ahead, k, stats)
            stats.probe = _Probe(k, rounds, self._running, expected, brings, price, after)
            stats.probed[k] = stats.probed.get(k, 0) + 1
            self._share = max(self._share / 2, MIN_SHARE)

    def _may_pay_off(self, stats: _KindStats, ahead: RoundAhead) -> bool:
        """Return whether drafts would pay if these texts were far easier to draft than all texts so far."""
        tokens = self._tokens(ahead, odds=_EASIER_ODDS)
        return any(tokens[k] > tokens[0] * stats.costs.ratio(k) for k in self.counts)

    def _end(self, stats: _KindStats, probe: _Probe, ahead: RoundAhead) -> None:
        """End a probe. If it went better than expected, continue it or make the next one come soon."""
        self._pay(stats, probe)
        values, gain = self.values(ahead), self._expected_tokens(ahead, probe.k, stats)
        if values[probe.k] > _SURPRISE_FACTOR * probe.expected * values[stats.k]:
            self._share = SHARE
        if stats.k == 0 and gain > _SURPRISE_FACTOR * probe.brings:  # drafts exist, and other texts may be similar
            self._account = _MAX_SAVED
            stats.probe = _Probe(probe.k, _PROBE, probe.texts, values[probe.k] / values[0], gain)

    def _expected_tokens(self, ahead: RoundAhead, k: int, stats: _KindStats) -> float:
        """Return the expected tokens of a round of ``k``, relative to a round of the current K."""
        tokens = self._tokens(ahead)
        return tokens[k] / tokens[stats.k]

    def _pay(self, stats: _KindStats, probe: _Probe) -> None:
        """Deduct a probe's loss from the savings."""
        self._account = max(self._account - max(probe.lost, _MIN_PRICE), -_MAX_DEBT)
        if stats.k == 0 and probe.price:
            stats.looked = (stats.looked + max(probe.lost - probe.price, 0.0)) / 2
        stats.probe = None

    def _lost(self, observed: ObservedRound, stats: _KindStats) -> float:
        """Return the cost of a round beyond its tokens, in rounds of the current K; includes prompt reading for a
        drafter."""
        tokens = self._tokens(observed.ahead)
        gained = sum(1 + len(accepted) for _, accepted in observed.outcomes) / tokens[stats.k]
        seconds = observed.seconds if observed.verified <= observed.k else None
        cost = None if seconds is None else stats.costs.cost_of(seconds)
        if cost is None:
            cost = stats.costs.ratio(observed.k)
        return min(cost / stats.costs.ratio(stats.k), _MAX_DEBT) - gained

    def _candidate(self, stats: _KindStats) -> int:
        """Return the K to probe, the least probed of four.

        These are the neighbours of the current K, half of it, whose cost says more about the others, and 0, which is
        probed half as often, because that costs the most.
        """
        if stats.k == 0:
            return next((k for k in self.counts if k >= _PROBED), self.counts[-1])
        at = self.counts.index(stats.k)
        near = (*self.counts[at + 1 : at + 2], self.counts[at // 2], 0, self.counts[at - 1])
        return min(near, key=lambda k: (stats.probed.get(k, 0) + 1) * (1 if k else 2))

    def _rates(self, texts: str | tuple[str, int]) -> AcceptanceRates:
        """Return the rates of all texts of a method, or of those of similar length."""
        return self._all.setdefault(texts, new_rates(self.max_drafts, of_text=False))

    def _before(self, method: str) -> Prior:
        return self._prior if method == self._of else self._guess

    def _stats_of(self, ahead: RoundAhead) -> _KindStats:
        if self._found[0]() is ahead:
            return self._found[1]
        methods = frozenset(row.method for row in ahead.rows)
        key = methods, ahead.busy, ahead.min_drafts, ahead.on_host
        if key not in self._stats:
            self._stats[key] = self._new_stats(ahead)
        self._found = ref(ahead), self._stats[key]
        return self._stats[key]

    def _new_stats(self, ahead: RoundAhead) -> _KindStats:
        """Return the statistics for a new kind of rounds.

        Costs are those measured for as many rows, or else those of known rounds: their passes have more columns in
        proportion to rows.
        """
        last, methods, busy = self._last, {row.method for row in ahead.rows}, ahead.busy
        prior = self._before(next(iter(methods), self._of))
        k, known = last.k if last else self._start, _CARRIED_WEIGHT
        if last and not prior.knows(busy):
            costs = [1 + busy / last.busy * (cost - 1) for cost in last.costs.shape()]
        else:
            costs, known = prior.costs_of(busy), prior.ratios if prior.knows(busy) else _CARRIED_WEIGHT
        if prior.knows(busy) and (last or busy > 1):
            k = max(self.counts, key=self._valued(self._tokens(ahead), costs, ahead.min_drafts).__getitem__)
        stats = _KindStats(k, RoundCosts(costs, known), busy)
        stats.since = DWELL if self._prior.is_measured else 0
        return stats
