"""Links in a checkpoint copy no outside files into what is built; links to its own files keep working."""

from __future__ import annotations

import shutil

import pytest

from tests.attacks import linked_files
from tests.attacks.random_inputs import Kind, attack
from tests.attacks.world import World, command
from tests.fixtures.attacks import Size


@pytest.fixture(scope="module")
def link(world: World) -> dict[str, Kind]:
    """Return the kind of input that replaces files by links."""
    for part in ("target", "head"):
        shutil.copytree(world.root / part, world.here / part)
    build = ["build", "--model", "target", "--draft", "head", "--out", "out", "--max-seq-len", "64"]
    outcome = command([*build, "--num-speculative-tokens", "2"])
    assert outcome.code == 0, outcome.err
    expected = linked_files.tokens_of(world.here / "out")
    world.restore()
    return {"linked file": Kind(linked_files.draw, lambda pieces: linked_files.run(world, expected, pieces), 1)}


def _no_fault(world: World, link: dict[str, Kind], size: Size) -> None:
    faults = [fault for number in size.numbers if (fault := attack(world, link, size.seed, number))]
    assert not faults, f"{len(faults)} of {size.attacks}\n" + "\n".join(map(str, faults[:20]))


def test_links_cannot_import_outside_files(world: World, link: dict[str, Kind]) -> None:
    _no_fault(world, link, Size(attacks=8, seed=0))


@pytest.mark.slow
def test_many_links_cannot_import_outside_files(world: World, link: dict[str, Kind], attack_size: Size) -> None:
    _no_fault(world, link, attack_size)
