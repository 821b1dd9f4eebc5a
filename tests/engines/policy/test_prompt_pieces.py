"""Pieces of prompts delay running requests by less than 4 rounds, and prompts get at least half of the time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines.policy.prompt_pieces import MIN, ROUNDS, FixedPieces, TimedPieces

ROUND = 1.0
TOKENS = 3000


@dataclass(frozen=True)
class Machine:
    """A pass takes ``fixed`` rounds, and each token ``token`` rounds more, growing by ``place`` per position."""

    fixed: float = 0.6
    token: float = 0.08
    place: float = 2e-5

    def piece(self, position: int, tokens: int) -> float:
        return self.fixed + tokens * (self.token + self.place * position)

    def read(self, pieces: TimedPieces, tokens: int, start: int = 0) -> list[tuple[int, int, float]]:
        """Read a prompt during one stream; return the position, tokens and seconds of every piece."""
        read = []
        for _ in range(3):
            pieces.begin_round()
            pieces.add_round(ROUND)
        while start < tokens:
            spent = 0.0
            while start < tokens:
                count = min(pieces.max_tokens(start, scored=False), tokens - start)
                if not pieces.fits(start, count, scored=False):
                    break
                seconds = self.piece(start, count)
                pieces.add_piece(start, count, seconds, scored=False)
                read.append((start, count, seconds))
                spent, start = spent + seconds, start + count
            pieces.begin_round()
            pieces.add_round(ROUND)
        return read


# Tokens after 2,000 others take up to 4 times as long as the first tokens.
MACHINES = st.builds(
    lambda fixed, token, growth: Machine(fixed, token, token * growth),
    st.floats(0.3, 1.2),
    st.floats(0.01, 0.2),
    st.floats(0, 1.5e-3),
)


@settings(max_examples=25, deadline=None)
@given(machine=MACHINES)
def test_gap_stays_below_4_rounds_where_the_smallest_piece_allows(machine: Machine) -> None:
    read = machine.read(TimedPieces(), TOKENS)
    settled = read[4:]  # the first pieces measure
    for position, tokens, seconds in settled:
        assert tokens == MIN or position + tokens == TOKENS or seconds + ROUND < 4 * ROUND


@settings(max_examples=25, deadline=None)
@given(machine=MACHINES)
def test_prompts_get_at_least_about_half_of_the_time(machine: Machine) -> None:
    seconds = [seconds for _, _, seconds in machine.read(TimedPieces(), TOKENS)[4:-1]]
    assert statistics.fmean(seconds) >= ROUND


@dataclass(frozen=True)
class Experts(Machine):
    """Each token uses ``used`` of 128 experts at random; a pass reads every expert that one of its tokens uses."""

    used: int = 8

    def piece(self, position: int, tokens: int) -> float:
        read = 128 * (1 - (1 - self.used / 128) ** tokens)
        return self.fixed + tokens * self.token + 0.05 * read


def test_prompts_of_models_with_experts_are_not_read_in_pieces_that_read_nearly_all_experts_for_few_tokens() -> None:
    """Tokens take 28 times as long in pieces of 4 as in those of 512, in which a prompt was read without streams."""
    machine, pieces = Experts(token=0.005), TimedPieces()
    pieces.add_piece(0, 512, machine.piece(0, 512), scored=False)
    machine.read(pieces, TOKENS)
    read = machine.read(pieces, TOKENS)
    assert max(tokens for _, tokens, _ in read) <= 128
    assert sum(seconds for _, _, seconds in read) < 1.2 * TOKENS / 128 * machine.piece(0, 128)


def test_one_disturbed_piece_does_not_slow_the_prompt() -> None:
    machine, pieces = Machine(), TimedPieces()
    machine.read(pieces, 400)
    usual = pieces.max_tokens(400, scored=False)
    pieces.add_piece(400, usual, 50 * ROUND, scored=False)
    assert pieces.max_tokens(400, scored=False) > usual / 2


@pytest.mark.parametrize("slow", [[600.0, 400.0], [600.0, 400.0, 500.0]])
def test_first_passes_over_the_slots_do_not_make_pieces_larger(slow: list[float]) -> None:
    """They take long because memory is allocated. With tokens that take 0.4 rounds, only pieces of 4 are in time."""
    machine, pieces = Machine(token=0.4), TimedPieces()
    for seconds in (machine.piece(0, MIN), *slow):
        pieces.add_piece(0, MIN, seconds, scored=False)
    read = machine.read(pieces, TOKENS)
    assert {tokens for _, tokens, _ in read[len(read) // 2 :]} == {MIN}


def test_short_prompts_share_the_time_between_two_rounds() -> None:
    machine, pieces = Machine(), TimedPieces()
    machine.read(pieces, 400)
    fitting = 0
    while pieces.fits(0, 2, scored=False):
        pieces.add_piece(0, 2, machine.piece(0, 2), scored=False)
        fitting += 1
    assert 2 <= fitting <= ROUNDS / machine.piece(0, 2)


def test_pieces_follow_the_rounds() -> None:
    """They take longer with more requests, and with longer texts."""
    machine, pieces = Machine(), TimedPieces()
    before = machine.read(pieces, 400)[-2][1]
    for _ in range(5):
        pieces.add_round(3 * ROUND)
    assert pieces.max_tokens(400, scored=False) >= 2 * before


@given(tokens=st.lists(st.integers(1, 200), min_size=1), limit=st.integers(1, 128))
def test_fixed_number_is_not_exceeded_between_two_rounds(tokens: list[int], limit: int) -> None:
    pieces, read = FixedPieces(limit), 0
    for wanted in tokens:
        count = min(wanted, pieces.max_tokens(0, scored=False))
        if not pieces.fits(0, count, scored=False):
            pieces.begin_round()
            read = 0
        pieces.add_piece(0, count, 0.0, scored=False)
        read += count
        assert read <= limit


@pytest.mark.parametrize("position", [0, 7000])
def test_one_piece_is_read_between_two_rounds_before_any_is_known(position: int) -> None:
    pieces = TimedPieces()
    first = pieces.max_tokens(position, scored=False)
    assert pieces.fits(position, first, scored=False)
    pieces.add_piece(position, first, 1.0, scored=False)
    assert not pieces.fits(position, first, scored=False)
