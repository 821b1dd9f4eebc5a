"""Figures of a benchmark, computed from its turns: speed, latency, acceptance, and equality with plain decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ...engines.requests.results import Acceptance
from ..bundled.prompts import Prompt
from .measure import Level, ModeTurn, TimedAnswer, named_temperature
from .modes import PLAIN_TITLE, DecodingMode
from .statistics import PairedRatios, Spread


@dataclass(frozen=True)
class FirstDifference:
    """The first token that differs from plain decoding: the id of the prompt, the position, and both tokens as text."""

    prompt: str
    position: int
    plain: str
    found: str


@dataclass(frozen=True)
class LatencyFigures:
    """Percentiles of times in milliseconds; ``curve`` has the 0th to the 100th."""

    p50: float
    p95: float
    p99: float
    curve: tuple[float, ...]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> LatencyFigures | None:
        """Compute the percentiles; None if there are no times."""
        if not seconds:
            return None
        curve = tuple(round(1000 * float(each), 4) for each in np.percentile(seconds, range(101)))
        return cls(curve[50], curve[95], curve[99], curve)


@dataclass(frozen=True)
class AcceptanceFigures:
    """Acceptance of drafts, as in the announcement: tokens per round with drafts, the target's included.

    ``rates`` are the shares of rounds that accepted at least their first draft, at least two, and so on.
    ``later_length`` counts only rounds after the first 20 of a request; None if there were none. ``verify`` and
    ``draft`` are milliseconds of the target and the drafter per round; None if they are not measured.
    """

    length: float
    rounds: int
    later_length: float | None
    later_rounds: int
    rates: tuple[float, ...]
    tokens_per_round: float
    verify: float | None
    draft: float | None

    @classmethod
    def of(cls, acceptances: Iterable[Acceptance | None]) -> AcceptanceFigures | None:
        """Sum over requests; None if nothing was drafted."""
        total = Acceptance()
        for acceptance in acceptances:
            if acceptance is not None:
                total.add(acceptance)
        if not total.rounds:
            return None
        verify, draft = total.milliseconds_per_round
        return cls(
            length=total.acceptance_length,
            rounds=total.rounds,
            later_length=total.later_acceptance_length if total.later_rounds else None,
            later_rounds=total.later_rounds,
            rates=tuple(count / total.rounds for count in total.accepted_per_position),
            tokens_per_round=total.tokens_per_round,
            verify=verify or None,
            draft=draft if verify else None,
        )


@dataclass(frozen=True)
class CategoryFigures:
    """Median speed of one user and acceptance on the prompts of one category; the speed is 0 if it is unknown."""

    category: str
    prompts: int
    tokens_per_second: float
    acceptance: AcceptanceFigures | None


@dataclass(frozen=True)
class ModeFigures:
    """Figures of one mode at one concurrency and temperature, which is None if the run has only one.

    ``user_speed`` are tokens per second of one user after the first token, ``total_speed`` those of all users with
    their prompts. ``over_plain`` and ``over_autoregressive`` compare ``user_speed`` group by group; the latter with the
    fastest mode whose drafter makes a pass per draft. ``inter_token`` divides the time of a piece among its tokens,
    ``between_pieces`` does not; a peer has no ``inter_token``, because its pieces do not state their number of tokens.
    ``identical`` is None if nothing was compared, and ``difference`` the first one. Tokens of a peer are not compared;
    ``equal_texts`` counts its answers with the text of plain decoding at the same temperature.
    """

    mode: str
    concurrency: int
    turns: int
    answers: int
    tokens: int
    user_speed: Spread
    total_speed: Spread
    over_plain: PairedRatios | None
    over_autoregressive: PairedRatios | None
    first_token: LatencyFigures | None
    inter_token: LatencyFigures | None
    between_pieces: LatencyFigures | None
    acceptance: AcceptanceFigures | None
    categories: tuple[CategoryFigures, ...]
    identical: bool | None
    difference: FirstDifference | None
    cost_per_million: float | None
    equal_texts: int | None = None
    temperature: float | None = None


def figures_of(
    levels: Sequence[Level],
    modes: Sequence[DecodingMode],
    prompts: Sequence[Prompt],
    *,
    decode: Callable[[Sequence[int]], str] | None = None,
    price_per_hour: float | None = None,
) -> list[ModeFigures]:
    """Return the figures of every mode at every concurrency and temperature with a finished turn.

    ``decode`` returns the text of tokens, to show the first difference. Without it, nothing is compared.
    """
    references: dict[float, dict[int, TimedAnswer]] = {level.temperature: {} for level in levels}
    if decode is not None:
        for level in levels:
            for turn in level.turns:
                for answer in turn[PLAIN_TITLE].answers:
                    references[level.temperature].setdefault(answer.prompt, answer)
    peers = {mode.title for mode in modes if mode.is_peer}
    found = []
    for level in levels:
        reference = references[level.temperature]
        measured = [
            turn for turn in level.turns if all(each.user_speed for name, each in turn.items() if name not in peers)
        ]
        rival = _fastest([mode.title for mode in modes if mode.is_autoregressive], measured)
        for mode in modes:
            every = [turn[mode.title] for turn in level.turns if mode.title in turn]
            if not every:
                continue
            own = [turn for turn in measured if mode.title in turn and turn[mode.title].user_speed]
            speeds = [turn[mode.title].user_speed for turn in own]
            answers = [answer for turn in every for answer in turn.answers]
            compared = None if mode.is_peer else decode
            difference = _difference(answers, reference, prompts, compared) if compared else None
            pieces = [piece for answer in answers for piece in answer.pieces]
            found.append(
                ModeFigures(
                    mode=mode.title,
                    concurrency=level.concurrency,
                    turns=len(every),
                    answers=len(answers),
                    tokens=sum(answer.tokens for answer in answers),
                    user_speed=Spread.of(speeds or [0.0]),
                    total_speed=Spread.of([turn.total_speed for turn in every]),
                    over_plain=_paired(speeds, PLAIN_TITLE, own) if decode else None,
                    over_autoregressive=_paired(speeds, rival, own) if rival else None,
                    first_token=LatencyFigures.of([answer.first_seconds for answer in answers]),
                    inter_token=None if mode.is_peer else LatencyFigures.of(_token_times(answers)),
                    between_pieces=LatencyFigures.of([gap for gap, _ in pieces]),
                    acceptance=AcceptanceFigures.of(answer.acceptance for answer in answers),
                    categories=_categories(answers, prompts),
                    identical=None if compared is None else difference is None,
                    difference=difference,
                    cost_per_million=None if price_per_hour is None else _cost(price_per_hour, every),
                    equal_texts=_equal_texts(answers, reference) if decode and mode.is_peer else None,
                    temperature=named_temperature(level, levels),
                )
            )
    return found


def _fastest(titles: Sequence[str], turns: Sequence[Mapping[str, ModeTurn]]) -> str | None:
    """Return the title with the highest median speed; None if there is none."""
    if not turns:
        return None
    return max(titles, key=lambda title: Spread.of([turn[title].user_speed for turn in turns]).median, default=None)


def _token_times(answers: Sequence[TimedAnswer]) -> list[float]:
    """Return the seconds of every token after the first; without the tokens of each piece, the mean of its answer."""
    known = [gap / count for answer in answers for gap, count in answer.pieces for _ in range(count)]
    if known:
        return known
    timed = [(answer.decode_seconds, answer.tokens - 1) for answer in answers if answer.is_timed]
    return [seconds / tokens for seconds, tokens in timed for _ in range(tokens)]


def _paired(speeds: Sequence[float], other: str, turns: Sequence[Mapping[str, ModeTurn]]) -> PairedRatios | None:
    if not turns:
        return None
    others = [turn[other] for turn in turns]
    return PairedRatios.of(speeds, [each.user_speed for each in others], [each.group for each in others])


def _categories(answers: Sequence[TimedAnswer], prompts: Sequence[Prompt]) -> tuple[CategoryFigures, ...]:
    by_category: dict[str, list[TimedAnswer]] = {}
    for answer in answers:
        by_category.setdefault(prompts[answer.prompt].kind, []).append(answer)
    return tuple(
        CategoryFigures(
            category=name,
            prompts=len({answer.prompt for answer in some}),
            tokens_per_second=median(
                [ModeTurn((answer,), 0.0).user_speed for answer in some if answer.is_timed] or [0.0]
            ),
            acceptance=AcceptanceFigures.of(answer.acceptance for answer in some),
        )
        for name, some in sorted(by_category.items())
    )


def _difference(
    answers: Sequence[TimedAnswer],
    reference: Mapping[int, TimedAnswer],
    prompts: Sequence[Prompt],
    decode: Callable[[Sequence[int]], str],
) -> FirstDifference | None:
    """Return the first answer that differs from plain decoding: its prompt, the position, and both tokens."""
    for answer in answers:
        expected = reference[answer.prompt].token_ids
        if answer.token_ids == expected:
            continue
        both = zip(expected, answer.token_ids, strict=False)
        at = next((i for i, (a, b) in enumerate(both) if a != b), min(len(expected), len(answer.token_ids)))
        texts = [decode(ids[at : at + 1]) if at < len(ids) else "(end)" for ids in (expected, answer.token_ids)]
        return FirstDifference(prompts[answer.prompt].id, at, *texts)
    return None


def _equal_texts(answers: Sequence[TimedAnswer], reference: Mapping[int, TimedAnswer]) -> int:
    """Count the answers with the text of plain decoding; servers differ in the white space at the ends."""
    return sum(answer.text.strip() == reference[answer.prompt].text.strip() for answer in answers)


def _cost(price_per_hour: float, turns: Sequence[ModeTurn]) -> float:
    """Return the price of a million tokens: that of all seconds, for all tokens, as slow turns cost the most."""
    tokens = sum(answer.tokens for turn in turns for answer in turn.answers)
    seconds = sum(turn.seconds for turn in turns)
    return price_per_hour / 3600 * seconds / tokens * 1e6 if tokens else math.inf
