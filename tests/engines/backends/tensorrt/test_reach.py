"""The cache positions that a pass reads cover every busy row, even if results arrive late."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines.backends.tensorrt.reach import Reach, lengths_of
from peagle.engines.folder.records import Origin, Part, PlanRecord, Profile

ORIGIN = Origin("demo", "1", "demo", "X")
SLOTS, MAX, WINDOW = 3, 512, 6
LENGTHS = (16, 64, 256, MAX)


def _part(*positions: int) -> Part:
    sizes = (Profile("verify", (1, 1, 1), (1, 9, 9), (1, 9, 9), positions),)
    plan = PlanRecord((*sizes, replace(sizes[0], name="prefill")), {}, {}, ())
    return Part(ORIGIN, "model.plan", ("input_ids", *(["positions"] if positions else [])), (), (), plan)


@pytest.mark.parametrize(
    ("told", "length", "expected"),
    [
        ([(1024, 4096, 30_016)], 30_016, (1024, 4096, 30_016)),
        ([(1024, 2112, 2112)], 2112, (1024, 2112)),
        ([(128, 128, 128)], 128, (128,)),
        ([(16, 32, 108), (16, 32, 64)], 108, (16, 64)),
        ([(), (16, 32, 256)], 256, (16, 64, 256)),
        ([()], 2112, (2112,)),
    ],
)
def test_lengths_grow_to_the_whole_cache(told: list[tuple[int, ...]], length: int, expected: tuple[int, ...]) -> None:
    assert lengths_of([_part(*each) for each in told], length) == expected


def test_idle_rows_need_no_reach() -> None:
    reach = Reach(LENGTHS, SLOTS)
    assert reach.of_windows(WINDOW) == 16
    reach.place(1, 30)
    assert reach.of_windows(WINDOW) == 64
    reach.place(1, None)
    assert reach.of_windows(WINDOW) == 16
    assert reach.holding(MAX + 1) == MAX


def test_a_round_can_be_prepared_for_longer_texts() -> None:
    reach = Reach(LENGTHS, SLOTS)
    with reach.at_least(256):
        assert reach.of_windows(WINDOW) == 256
    assert reach.of_windows(WINDOW) == 16


def test_earlier_results_of_a_slot_are_ignored() -> None:
    reach = Reach(LENGTHS, SLOTS)
    reach.place(0, 200)
    came = reach.launched([5, 0, 0])
    reach.place(0, None)
    reach.place(0, 57)
    came(np.array([1, 0, 0]))
    assert reach.of_windows(7) == 64
    assert reach.of_windows(8) == 256


@dataclass
class _Texts:
    """The actual state: the start of every slot's window, and the rounds whose results are unread."""

    starts: list[int | None] = field(default_factory=lambda: [None] * SLOTS)
    unread: list[tuple[object, np.ndarray]] = field(default_factory=list)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_reach_covers_every_busy_window_minimally(data: st.DataObject) -> None:
    reach, truth = Reach(LENGTHS, SLOTS), _Texts()
    for _ in range(data.draw(st.integers(1, 25))):
        what, slot = (
            data.draw(st.sampled_from(["place", "retire", "round", "round", "read"])),
            data.draw(st.integers(0, SLOTS - 1)),
        )
        if what == "place":
            truth.starts[slot] = data.draw(st.integers(1, 200))
            reach.place(slot, truth.starts[slot])
        elif what == "retire":
            truth.starts[slot] = None
            reach.place(slot, None)
        elif what == "round":
            drafted = [data.draw(st.integers(0, WINDOW - 1)) for _ in range(SLOTS)]
            counts = np.array([data.draw(st.integers(1, count + 1)) for count in drafted])
            came = reach.launched(drafted)
            truth.starts = [None if s is None else s + int(n) for s, n in zip(truth.starts, counts, strict=True)]
            truth.unread.append((came, counts))
        elif truth.unread:
            came, counts = truth.unread.pop(0)
            came(counts)  # type: ignore[operator]
        furthest = max((start for start in truth.starts if start is not None), default=0)
        assert reach.of_windows(WINDOW) >= min(furthest + WINDOW, MAX)
        late = WINDOW * len(truth.unread)
        assert reach.of_windows(WINDOW) <= next(n for n in LENGTHS if n >= min(furthest + WINDOW + late, MAX))
