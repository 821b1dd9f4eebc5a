"""A checkpoint with damaged weights is refused before anything is written, or gives an engine that runs."""

from __future__ import annotations

import pytest

from tests.attacks.random_inputs import Kind, attack, kinds
from tests.attacks.world import World
from tests.fixtures.attacks import Size


@pytest.fixture(scope="module")
def damage(world: World) -> dict[str, Kind]:
    """The kind of input that damages weights."""
    return {name: kind for name, kind in kinds(world, whole=True).items() if name == "weights"}


def test_damaged_weights_are_refused_or_give_an_engine_that_runs(world: World, damage: dict[str, Kind]) -> None:
    faults = [fault for number in range(15) if (fault := attack(world, damage, 0, number))]
    assert not faults, "\n".join(map(str, faults))


@pytest.mark.slow
def test_many_damaged_weights_are_refused_or_give_an_engine_that_runs(
    world: World, damage: dict[str, Kind], attack_size: Size
) -> None:
    faults = [fault for number in attack_size.numbers if (fault := attack(world, damage, attack_size.seed, number))]
    assert not faults, "\n".join(map(str, faults))
