"""Whatever is typed, passed or read: the work is done, or an error of ours says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.engines import Engine
from tests.attacks.random_inputs import attack, kinds
from tests.attacks.world import World
from tests.fixtures.attacks import Size


@pytest.fixture(scope="module")
def small_engine(tiny_folder: Path) -> Engine:
    """An engine that the calls are made of."""
    return Engine.load(tiny_folder, max_batch_size=2, threads=1)


def _no_fault(world: World, engine: Engine, size: Size, *, whole: bool) -> None:
    choices = kinds(world, engine, whole=whole)
    faults = []
    for number in size.numbers:
        if fault := attack(world, choices, size.seed, number):
            faults.append(fault)
            print(fault, flush=True)
    assert not faults, f"{len(faults)} of {size.attacks}\n" + "\n".join(map(str, faults[:20]))


def test_random_inputs_end_with_work_done_or_an_error_of_ours(world: World, small_engine: Engine) -> None:
    _no_fault(world, small_engine, Size(attacks=60, seed=0), whole=False)


@pytest.mark.slow
def test_many_random_inputs_end_with_work_done_or_an_error_of_ours(
    world: World, small_engine: Engine, attack_size: Size
) -> None:
    _no_fault(world, small_engine, attack_size, whole=True)
