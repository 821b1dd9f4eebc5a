"""A backend keeps the rounds of the last few kinds, and drops the others when the device is done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.backends.tensorrt.kept_rounds import KeptRounds
from peagle.engines.draft_methods.lanes import Lanes
from tests.engines.backends.host_device import HostDevice


def steps(lanes: Lanes, k: int) -> None:
    """A round that does nothing."""


@given(asked=st.lists(st.integers(0, 6), max_size=30), most=st.integers(1, 4))
def test_most_recent_round_kinds_are_kept(asked: list[int], most: int) -> None:
    rounds, kept = KeptRounds(HostDevice(), most), dict[int, object]()
    for k in asked:
        fresh = rounds.of((steps, k, 1, 0, (0,)))
        assert (fresh is kept.get(k)) == (k in kept)
        kept = {**{each: kept[each] for each in kept if each != k}, k: fresh}
        kept = {each: kept[each] for each in [*kept][-most:]}
        assert len(rounds) == len(kept)


def test_a_round_is_not_dropped_while_it_runs() -> None:
    device, done = HostDevice(), list[int]()
    rounds = KeptRounds(device, capacity=1)
    rounds.of((steps, 1, 1, 0, (0,)))
    device.enqueue(lambda: done.append(1))
    rounds.of((steps, 1, 1, 0, (0,)))
    assert not done
    rounds.of((steps, 2, 1, 0, (0,)))
    assert done == [1]


def test_row_count_is_part_of_the_kind() -> None:
    rounds = KeptRounds(HostDevice(), capacity=2)
    assert rounds.of((steps, 1, 1, 0, (0,))) is not rounds.of((steps, 1, 2, 0, (0,)))
    assert rounds.of((steps, 1, 1, 0, (0,))) is rounds.of((steps, 1, 1, 0, (0,)))


def test_rounds_of_a_drafter_are_dropped_with_it_and_no_others() -> None:
    device, done = HostDevice(), list[int]()
    rounds = KeptRounds(device, capacity=9)
    for drafters in ((), (0,), (1,), (0, 1)):
        rounds.of((steps, 1, 1, 0, drafters)).has_run = True
    device.enqueue(lambda: done.append(1))
    rounds.drop_drafter(1)
    assert done == [1]
    found = {drafters: rounds.of((steps, 1, 1, 0, drafters)).has_run for drafters in ((), (0,), (1,), (0, 1))}
    assert found == {(): True, (0,): True, (1,): False, (0, 1): False}
