"""K for every round, by what it brings for what it costs: tokens a second, as expected from the rounds before.

    value(K) = sum over texts of (1 + q_1 + ... + q_K) / seconds of a round of K

q_j is how often the j-th draft is accepted, be it of a chain or of a tree: of this text as far as that is known, else
of all texts. The K of most value is taken, 0 among them, when it is better than the present one by a margin.

What is not tried is not known, so now and then a few rounds are a probe: with few drafts where there are none, with the
next K's or none where there are some. Probes are paid for: a small share of every round goes to an account, a probe is
made when the account covers what it is expected to lose, and what it did lose is taken from there. A probe halves that
share, a new text doubles it, and a change of K or a probe that went better than expected restores it. So a drafter that
is no good costs its first few rounds, and then that share. Where nothing is drafted a probe is a round that drafts,
which may have to read a prompt, and two that verify; it goes on where drafts are accepted.

The policy is a function of the rounds it is told of; it looks at no clock, and draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from .acceptance_rates import AcceptanceRates, new_rates, rates_of_all, rates_of_text
from .drafts_per_round import RoundAhead, RoundSeen
from .prior import Prior, guessed, tokens_by_k
from .round_costs import RoundCosts

MORE, FEWER = 1.05, 1.015  # by so much a K of more drafts, or of fewer, must be better
DWELL = 6  # rounds before K changes again
SHARE, LEAST_SHARE = 0.02, 0.005  # of a round, for probes
OFF_SHARE = 0.6  # of that share, where nothing is drafted
_FIRST, _MOST_SAVED = 3.0, 4.0  # what the account begins with, where nothing was measured, and may hold, in rounds
_MOST_OWED = 16.0  # rounds, of a probe that cost more than was saved for it
_PROBE, _LEAST_PRICE = 4, 0.25  # rounds that a probe has, and is counted for at least
_LOOK, _READING = 3, 1.5  # rounds of one where nothing is drafted; what it costs beside them until it is known
_SURPRISE = 1.1  # so much better than expected a probe is no more of the same
_PROBED = 2  # drafts, where there are none
_CARRIED = 2.0  # ratios that the costs of rounds of another kind count for


@dataclass
class _Probe:
    """So many ``rounds`` of ``k`` drafts for these ``texts``, ``expected`` to be worth so much of the present K.

    They are taken to bring ``brings`` times its tokens. ``price`` is what the drafts were to cost and ``lost`` what
    they did, in rounds of that, both beyond what they bring.
    """

    k: int
    rounds: int
    texts: list[int]
    expected: float
    brings: float
    price: float = 0.0
    lost: float = 0.0


class _Place:
    """What is known of rounds of one kind: so many rows, drafted for in this way; and the K that they have now."""

    def __init__(self, k: int, costs: RoundCosts, busy: int) -> None:
        self.k, self.costs, self.busy = k, costs, max(busy, 1)
        self.since = 0  # rounds with this K
        self.weighed: object = None  # what was known, and of which texts, when ``best`` was found
        self.best = k
        self.probe: _Probe | None = None
        self.probed: dict[int, int] = {}  # K -> how often
        self.price = _LEAST_PRICE  # of the next probe, in rounds
        self.looked = _READING  # what a look at drafts costs beside that, where there are none

    def change(self, k: int) -> None:
        self.k, self.since, self.probe, self.price = k, 0, None, _LEAST_PRICE


class Adaptive:
    """A policy that drafts as much as pays, up to ``most``, and not at all where nothing does. One for an engine."""

    def __init__(self, start: int, most: int, prior: Prior | None = None, method: str = "") -> None:
        """``start`` is the K of the first round; what is known of ``method`` when it begins is ``prior``."""
        if not 0 <= start <= most:
            raise ValueError(f"start is {start}, most is {most}")
        self.most = most
        self._start = start
        self._guess = guessed(start, most)
        self._prior, self._of = prior or self._guess, method
        self._all: dict[str, AcceptanceRates] = {}  # by method
        self._texts: WeakKeyDictionary[object, AcceptanceRates] = WeakKeyDictionary()
        self._places: dict[object, _Place] = {}
        self._last: _Place | None = None
        self._found = RoundAhead((), 0), _Place(start, RoundCosts([1.0], 1.0), 1)  # the place of the last round
        self._running: list[int] = []
        self._learnt = 0  # how often something was
        self._share, self._account = SHARE, 0.0 if self._prior.is_measured else _FIRST

    def choose(self, ahead: RoundAhead) -> int:
        """K of this round: that of a probe, else the present one, unless another is worth more by a margin."""
        place = self._place(ahead)
        texts = [id(row.text) for row in ahead.rows]
        if place.probe is not None and place.probe.texts == texts:
            return place.probe.k
        if place.since < DWELL:
            return place.k
        known = self._learnt, texts
        if place.weighed != known:
            values = self.values(ahead)
            best = max(range(self.most + 1), key=values.__getitem__)
            margin = MORE if best > place.k else FEWER
            place.weighed, place.best = known, best if values[best] > margin * values[place.k] else place.k
        return place.best

    def reach(self, ahead: RoundAhead, k: int) -> int:
        """The window of most tokens a second, where what forms force may fill it; such drafts need no drafter's pass.

        Their columns are taken to cost what rounds of as many drafts cost, which is more.
        """
        if all(row.forced <= k for row in ahead.rows):
            return k
        certain = [row for row in ahead.rows if row.forced]
        others = replace(ahead, rows=[row for row in ahead.rows if not row.forced])
        costs, brought = self._place(ahead).costs, self._tokens(others)[k]

        def value(drafts: int) -> float:
            forced = sum(1 + row.trust * min(row.forced, drafts) for row in certain)
            return (brought + forced) / costs.ratio(max(drafts, ahead.least))

        return max(range(k, self.most + 1), key=value)

    def learn(self, seen: RoundSeen) -> None:
        """Count what was accepted, time the round, and see whether it is time for a probe."""
        place = self._last = self._place(seen.ahead)
        self._count(seen, place)
        place.since += 1
        if place.probe is not None and place.probe.texts != self._running:
            self._pay(place, place.probe)  # one of them has ended: there is no more to see
        if place.probe is not None and seen.k == place.probe.k:
            place.probe.lost += self._lost(seen, place)
        if seen.seconds is not None and seen.verified == seen.k:  # else the drafts were made for another K
            self._learnt += place.costs.add(seen.k, seen.seconds)
        if place.probe is not None and seen.k == place.probe.k:
            place.probe.rounds -= 1
            if place.probe.rounds <= 0:
                self._end(place, place.probe, seen.ahead)
        elif seen.k == place.k:
            self._save(place, seen.ahead)
        elif self.choose(seen.ahead) == seen.k:  # else it was launched before the last probe had ended
            place.change(seen.k)
            self._share = SHARE

    def values(self, ahead: RoundAhead) -> list[float]:
        """What each K = 0 .. ``most`` is expected to bring, in tokens a second of a unit that all of them share."""
        tokens, costs = self._tokens(ahead), self._place(ahead).costs
        return [brought / costs.ratio(max(k, ahead.least)) for k, brought in enumerate(tokens)]

    def _tokens(self, ahead: RoundAhead) -> list[float]:
        of_all = {row.method: rates_of_all(self._rates(row.method), self._before(row.method)) for row in ahead.rows}
        brought = [0.0] * (self.most + 1)
        for row in ahead.rows:
            text, common = self._texts.get(row.text), of_all[row.method]
            for k, tokens in enumerate(tokens_by_k(rates_of_text(text, common) if text else common)):
                brought[k] += tokens
        return brought

    def _count(self, seen: RoundSeen, place: _Place) -> None:
        running = [id(row.text) for row in seen.ahead.rows]
        if running != self._running:
            self._running = running
            place.costs.begin()
        for row, (drafted, accepted) in zip(seen.ahead.rows, seen.outcomes, strict=True):
            text = self._texts.get(row.text)
            if text is None:
                text = self._texts[row.text] = new_rates(self.most, of_text=True)
                self._share = min(2 * self._share, SHARE)
            if drafted:
                text.add(drafted, accepted)
                self._rates(row.method).add(drafted, accepted)
                self._learnt += 1

    def _save(self, place: _Place, ahead: RoundAhead) -> None:
        """Put the share of a round aside, and begin a probe where that is enough for it."""
        is_off = place.k == 0
        self._account = min(self._account + self._share * (OFF_SHARE if is_off else 1.0), _MOST_SAVED)
        if place.since < DWELL or self._account < place.price or self.most == 0:
            return
        k, values = self._candidate(place), self.values(ahead)
        rounds, ratio = (_LOOK if is_off else _PROBE), place.costs.ratio(k) / place.costs.ratio(place.k)
        after = float(k == 0)  # after a round without drafts there are none to verify
        price = rounds * max(1 - values[k] / values[place.k], 0.0) * ratio
        place.price = min(max(price + (place.looked if is_off else after), _LEAST_PRICE), _MOST_SAVED)
        if self._account >= place.price:
            place.price = _LEAST_PRICE
            expected, brings = values[k] / values[place.k], self._brings(ahead, k, place)
            place.probe = _Probe(k, rounds, self._running, expected, brings, price, after)
            place.probed[k] = place.probed.get(k, 0) + 1
            self._share = max(self._share / 2, LEAST_SHARE)

    def _end(self, place: _Place, probe: _Probe, ahead: RoundAhead) -> None:
        """End a probe; where it went better than was known, it goes on, or the next is to come soon."""
        self._pay(place, probe)
        values, brought = self.values(ahead), self._brings(ahead, probe.k, place)
        if values[probe.k] > _SURPRISE * probe.expected * values[place.k]:
            self._share = SHARE
        if place.k == 0 and brought > _SURPRISE * probe.brings:  # the drafts are there, and other texts may be like it
            self._account = _MOST_SAVED
            place.probe = _Probe(probe.k, _PROBE, probe.texts, values[probe.k] / values[0], brought)

    def _brings(self, ahead: RoundAhead, k: int, place: _Place) -> float:
        """How many times the tokens of a round of the present K one of ``k`` is expected to bring."""
        tokens = self._tokens(ahead)
        return tokens[k] / tokens[place.k]

    def _pay(self, place: _Place, probe: _Probe) -> None:
        """Take what a probe lost from the account."""
        self._account = max(self._account - max(probe.lost, _LEAST_PRICE), -_MOST_OWED)
        if place.k == 0 and probe.price:
            place.looked = (place.looked + max(probe.lost - probe.price, 0.0)) / 2
        place.probe = None

    def _lost(self, seen: RoundSeen, place: _Place) -> float:
        """How many rounds of the present K a round cost beyond what it brought, reading for a drafter included."""
        tokens = self._tokens(seen.ahead)
        brought = sum(1 + len(accepted) for _, accepted in seen.outcomes) / tokens[place.k]
        seconds = seen.seconds if seen.verified <= seen.k else None
        cost = None if seconds is None else place.costs.cost_of(seconds)
        if cost is None:
            cost = place.costs.ratio(seen.k)
        return min(cost / place.costs.ratio(place.k), _MOST_OWED) - brought

    def _candidate(self, place: _Place) -> int:
        """The K that a probe is to try: of what is next to the present one, and none, the one tried least."""
        if place.k == 0:
            return min(_PROBED, self.most)
        near = [k for k in (0, place.k + 1, place.k - 1) if 0 <= k <= self.most]
        return min(near, key=lambda k: place.probed.get(k, 0))

    def _rates(self, method: str) -> AcceptanceRates:
        return self._all.setdefault(method, new_rates(self.most, of_text=False))

    def _before(self, method: str) -> Prior:
        return self._prior if method == self._of else self._guess

    def _place(self, ahead: RoundAhead) -> _Place:
        if self._found[0] is ahead:
            return self._found[1]
        methods = frozenset(row.method for row in ahead.rows)
        key = methods, ahead.busy, ahead.least, ahead.on_host
        if key not in self._places:
            self._places[key] = self._new_place(ahead)
        self._found = ahead, self._places[key]
        return self._places[key]

    def _new_place(self, ahead: RoundAhead) -> _Place:
        """What is known of rounds of another kind: their passes have as many columns more as they have rows more."""
        last, methods = self._last, {row.method for row in ahead.rows}
        prior = self._before(next(iter(methods), self._of))
        shape, rows = (last.costs.shape(), ahead.busy / last.busy) if last else (prior.costs, float(ahead.busy))
        costs = [1 + rows * (cost - 1) for cost in shape]
        known = prior.ratios if last is None and ahead.busy == 1 else _CARRIED
        place = _Place(last.k if last else self._start, RoundCosts(costs, known), ahead.busy)
        place.since = DWELL if self._prior.is_measured else 0
        return place
