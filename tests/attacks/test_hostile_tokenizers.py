"""A hostile ``tokenizer.json`` gives the specified ids and texts or a ``PeagleError``, and the engine keeps running."""

from __future__ import annotations

import pytest

from peagle.engines import Engine
from tests.attacks import tokenizer_edits
from tests.attacks.random_inputs import Kind, no_fault
from tests.attacks.world import World
from tests.fixtures.attacks import Size


def _tokenizers(world: World, engine: Engine) -> dict[str, Kind]:
    kind = Kind(
        lambda rng: tokenizer_edits.draw(rng, world), lambda pieces: tokenizer_edits.run(world, engine, pieces), 1
    )
    return {"tokenizer": kind}


def test_hostile_tokenizers_are_right_or_refused(world: World, small_engine: Engine) -> None:
    no_fault(world, _tokenizers(world, small_engine), Size(attacks=60, seed=0))


@pytest.mark.slow
def test_many_hostile_tokenizers_are_right_or_refused(world: World, small_engine: Engine, attack_size: Size) -> None:
    no_fault(world, _tokenizers(world, small_engine), attack_size)
