"""Any input of commands, calls and files is processed, or refused with a ``PeagleError`` that says why."""

from __future__ import annotations

import pytest

from peagle.engines import Engine
from tests.attacks.random_inputs import kinds, no_fault
from tests.attacks.world import World
from tests.fixtures.attacks import Size


def test_random_inputs_succeed_or_raise_project_errors(world: World, small_engine: Engine) -> None:
    no_fault(world, kinds(world, small_engine, whole=False), Size(attacks=20, seed=0))


@pytest.mark.slow
def test_many_random_inputs_succeed_or_raise_project_errors(
    world: World, small_engine: Engine, attack_size: Size
) -> None:
    no_fault(world, kinds(world, small_engine, whole=True), attack_size)
