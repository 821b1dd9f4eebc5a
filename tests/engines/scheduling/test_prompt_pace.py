"""Pieces of prompts take the time of almost two rounds, whatever a round and a token cost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.base import Chunk, Steps
from peagle.engines.backends.onnxruntime.backend import KeptRow
from peagle.engines.draft_methods.lanes import Emission
from peagle.engines.draft_methods.peagle import METHOD
from peagle.engines.policy.drafts_per_round import Fixed
from peagle.engines.requests.random_numbers import uniform_stream
from peagle.engines.running.request import Request
from peagle.engines.scheduling import scheduler
from peagle.engines.scheduling.prompt_pace import FIXED, LEAST, ROUNDS, PromptPace, pace_of
from peagle.engines.scheduling.scheduler import Scheduler
from peagle.engines.text.transcript import Transcript

MANY = 10_000


@dataclass
class Machine:
    """The seconds of a round and of a piece, as on a machine: a pass costs something however small it is."""

    of_round: float = 0.010
    of_pass: float = 0.004
    of_token: float = 0.0002

    def piece(self, tokens: int) -> float:
        return self.of_pass + self.of_token * tokens


def _read(pace: PromptPace, machine: Machine, rounds: int, most: int = MANY) -> tuple[list[int], list[float]]:
    """Return the sizes of the pieces of a prompt, and the gaps between rounds that they cause."""
    sizes, gaps = [], []
    for _ in range(rounds):
        gap = machine.of_round
        while size := pace.piece(most):
            pace.add_piece(size, machine.piece(size), beside=True)
            sizes.append(size)
            gap += machine.piece(size)
        gaps.append(gap)
        pace.begin_round()
        pace.add_round(machine.of_round)
    return sizes, gaps


MACHINES = st.builds(
    lambda of_round, of_pass, of_token: Machine(of_round, of_pass * of_round, of_token * of_round),
    st.floats(1e-4, 10),
    st.floats(0.1, 1),  # a pass costs no more than a round, of which it is a part
    st.floats(0.001, 0.05),
)


@given(machine=MACHINES, shortest=st.sampled_from([MANY, 300, 40]))
def test_no_gap_reaches_four_rounds(machine: Machine, shortest: int) -> None:
    sizes, gaps = _read(PromptPace(), machine, rounds=30, most=shortest)
    assert max(gaps) < 4 * machine.of_round
    assert min(sizes) >= LEAST


@given(machine=MACHINES)
def test_pieces_grow_to_their_time(machine: Machine) -> None:
    sizes, _ = _read(PromptPace(), machine, rounds=60)
    limit = (ROUNDS * machine.of_round - machine.of_pass) / machine.of_token
    assert sizes[-1] <= limit
    assert sizes[-1] >= min(0.75 * limit, limit - 4) or sizes[-1] == LEAST


def test_first_piece_is_small_because_its_cost_is_unknown() -> None:
    pace = PromptPace()
    pace.add_piece(512, 0.1, beside=False)
    pace.begin_round()
    pace.add_round(0.01)
    assert pace.piece(MANY) == LEAST


def test_pieces_shrink_as_the_prompt_grows_longer() -> None:
    pace, machine = PromptPace(), Machine()
    before = _read(pace, machine, rounds=20)[0][-1]
    machine.of_token *= 2
    sizes, gaps = _read(pace, machine, rounds=20)
    assert sizes[-1] < 0.7 * before
    assert max(gaps[3:]) < 4 * machine.of_round


def test_longer_rounds_get_larger_pieces() -> None:
    pace, machine = PromptPace(), Machine()
    before = _read(pace, machine, rounds=20)[0][-1]
    machine.of_round *= 2
    assert _read(pace, machine, rounds=20)[0][-1] > 1.5 * before


def test_one_slow_pass_changes_no_size() -> None:
    pace, machine = PromptPace(), Machine()
    before = _read(pace, machine, rounds=20)[0][-1]
    pace.add_piece(before, 40 * machine.piece(before), beside=True)
    pace.begin_round()
    pace.add_round(40 * machine.of_round)
    assert pace.piece(MANY) == before


def test_slow_tokens_still_come_in_pieces_of_the_least_size() -> None:
    sizes, _ = _read(PromptPace(), Machine(of_token=1.0), rounds=5)
    assert sizes == [LEAST] * 5


def test_short_prompts_share_the_time_between_two_rounds() -> None:
    pace, machine = PromptPace(), Machine(of_pass=0.001)
    _read(pace, machine, rounds=20)
    sizes, gaps = _read(pace, machine, rounds=1, most=20)
    assert len(sizes) > 1
    assert gaps[0] <= 3 * machine.of_round


def test_a_number_of_tokens_is_kept_whatever_the_time() -> None:
    pace = PromptPace(100)
    sizes, _ = _read(pace, Machine(of_token=1.0), rounds=3)
    assert sizes == [100] * 3
    assert [pace.piece(30), pace.piece(MANY)] == [30, 100]
    pace.add_piece(30, 9.0, beside=True)
    assert [pace.piece(70), pace.piece(71)] == [70, 0]


def test_backends_that_do_not_wait_for_passes_get_a_number_of_tokens() -> None:
    late: Any = SimpleNamespace(lag=1)
    assert pace_of(late).piece(MANY) == FIXED
    assert pace_of(late, 7).piece(MANY) == 7
    assert pace_of(SimpleNamespace(lag=0)).piece(MANY) == LEAST  # type: ignore[arg-type]


class Timed:
    """A backend on which passes take the time that a machine says, by a clock of its own."""

    def __init__(self, backend: Any, machine: Machine) -> None:
        self._backend, self.machine = backend, machine
        self.now = 1.0
        self.widths: list[int] = []
        self.rounds: list[float] = []  # when they ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def perf_counter(self) -> float:
        return self.now

    def prompt(self, slot: int, chunk: Chunk, steps: Steps, k: int) -> None:
        self.now += self.machine.piece(len(chunk.ids))
        self.widths.append(len(chunk.ids))
        self._backend.prompt(slot, chunk, steps, k)

    def round(self, *args: Any, **options: Any) -> Emission:
        self.now += self.machine.of_round
        self.rounds.append(self.now)
        return self._backend.round(*args, **options)  # type: ignore[no-any-return]


def _beside(engine: Engine, prompt: list[int], timed: Timed) -> tuple[list[int], list[int], float]:
    """Return the texts of a stream and of a prompt that joins it, and the longest gap between rounds meanwhile."""
    running = Scheduler(timed, engine.max_seq_len)  # type: ignore[arg-type]
    stream, newcomer = _request(engine, [5, 6, 7], 60), _request(engine, prompt, 4)
    running.submit(stream)
    for _ in range(12):
        running.step()
    timed.widths.clear()
    timed.rounds[:-1] = []
    running.submit(newcomer)
    while not newcomer.transcript.token_ids:
        running.step()
    gaps = [after - before for before, after in pairwise([*timed.rounds, timed.now])]
    while not running.is_idle:
        running.step()
    return stream.transcript.token_ids, newcomer.transcript.token_ids, max(gaps)


def _request(engine: Engine, prompt: list[int], tokens: int) -> Request:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Request(
        tuple(prompt), params, 0, Transcript(params, engine.tokenizer, tokens, frozenset()), tokens, METHOD, Fixed(0)
    )


def test_stream_keeps_its_pace_beside_a_prompt_and_texts_stay_the_same(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower a token of the prompt, the smaller the pieces; every text and gap is as it must be."""
    prompt = [7 + number % 80 for number in range(88)]
    alone = [
        list(tiny_engine.generate([ids], SamplingParams(max_tokens=most, ignore_eos=True))[0].token_ids)
        for ids, most in (([5, 6, 7], 60), (prompt, 4))
    ]
    largest = []
    for of_token in (0.0002, 0.0005, 0.002):
        timed = Timed(tiny_engine._backend, Machine(of_token=of_token))
        monkeypatch.setattr(scheduler, "time", timed)
        stream, newcomer, gap = _beside(tiny_engine, prompt, timed)
        assert [stream, newcomer] == alone
        assert gap < 4 * timed.machine.of_round
        largest.append(max(timed.widths))
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 2 * largest[-1]


@pytest.mark.parametrize("sizes", [[4, 5, 9, 14, 22, 26], [80], [1] * 80])
def test_caches_have_the_same_bits_for_every_size_of_pieces(tiny_engine: Engine, sizes: list[int]) -> None:
    backend, prompt = tiny_engine._backend, [7 + number % 80 for number in range(80)]

    def read(sizes: list[int]) -> list[bytes]:
        backend.begin()
        backend.admit(0, SamplingParams(), uniform_stream(0, tiny_engine.max_seq_len + 1))
        start = 0
        for size in sizes:
            following = prompt[start + size] if start + size < len(prompt) else -1
            backend.prompt(0, Chunk(prompt[start : start + size], start, following), METHOD.strategy.prompt, 4)
            start += size
        kept = backend.keep(0, len(prompt))
        assert isinstance(kept, KeptRow)
        return [cache.tobytes() for cache in kept.arrays.caches]

    assert read(sizes) == read([len(prompt) // 2] * 2)
