"""The sandbox that the attacks run in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.engines import Engine
from tests.attacks.world import World, make_world
from tests.models import Pair


@pytest.fixture(scope="module")
def small_engine(tiny_folder: Path) -> Engine:
    """An engine that the calls are made of."""
    return Engine.load(tiny_folder, max_batch_size=2, threads=1)


@pytest.fixture(scope="module")
def world(
    tiny_folder: Path, tiny_pair: Pair, trials_once: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A world with a home, a cache and a current folder of its own, and without the Hub."""
    made = make_world(
        tmp_path_factory.mktemp("attacks") / "world", tiny_folder, tiny_pair, Path(os.environ["PEAGLE_CACHE"])
    )
    hub = made.root / "home" / "hub"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("PEAGLE_CACHE", made.root / "cache"), ("HOME", made.root / "home"), ("HF_HOME", hub)):
            patch.setenv(name, str(value))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
        patch.chdir(made.here)
        yield made
