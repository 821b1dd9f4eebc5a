"""A cache with planted entries is refused, and its damaged entries are built again."""

from __future__ import annotations

import pytest

from tests.attacks import planted_caches
from tests.attacks.planted_caches import Caches
from tests.attacks.random_inputs import Kind, attack
from tests.attacks.world import World
from tests.fixtures.attacks import Size

pytestmark = pytest.mark.begins_first


@pytest.fixture(scope="module")
def caches(world: World, tmp_path_factory: pytest.TempPathFactory) -> Caches:
    """Whole caches, to be copied before anything is planted."""
    made = planted_caches.make_caches(world, tmp_path_factory.mktemp("caches"))
    world.restore()
    return made


@pytest.fixture(scope="module")
def plant(world: World, caches: Caches) -> dict[str, Kind]:
    """The kind of input that plants something."""
    kind = Kind(
        lambda rng: planted_caches.draw(rng, caches), lambda pieces: planted_caches.run(world, caches, pieces), 1
    )
    return {"planted cache": kind}


def _no_fault(world: World, plant: dict[str, Kind], size: Size) -> None:
    faults = [fault for number in size.numbers if (fault := attack(world, plant, size.seed, number))]
    assert not faults, f"{len(faults)} of {size.attacks}\n" + "\n".join(map(str, faults[:20]))


def test_planted_caches_are_refused_or_mended(world: World, plant: dict[str, Kind]) -> None:
    _no_fault(world, plant, Size(attacks=5, seed=0))


@pytest.mark.slow
def test_many_planted_caches_are_refused_or_mended(world: World, plant: dict[str, Kind], attack_size: Size) -> None:
    _no_fault(world, plant, attack_size)
