"""Tiny targets and samples for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Progress
from peagle.compiler.precision.calibration.calibrate import Settings, calibrate
from peagle.compiler.precision.calibration.dataset import Samples
from peagle.compiler.precision.calibration.saved_ranges import Scales
from peagle.compiler.store.stages import StageStore
from tests.models import VOCAB, Pair, make_pair

Calibrate = Callable[..., Scales]


def random_samples(*lengths: int, seed: int = 0) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    return Samples.of("random", [torch.randint(2, VOCAB, (n,), generator=generator).tolist() for n in lengths])


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """A random target of a family, made once."""
    made: dict[str, Pair] = {}

    def get(family: str) -> Pair:
        if family not in made:
            made[family] = make_pair(tmp_path_factory.mktemp(family), family)
        return made[family]

    return get


@pytest.fixture
def calibrated(tmp_path: Path) -> Calibrate:
    """Calibrate a target in a stage store of this test."""

    def run(
        pair: Pair, samples: Samples, settings: Settings | None = None, progress: Progress | None = None, *,
        force: bool = False, store: Path | None = None,
    ) -> Scales:  # fmt: skip
        kept = StageStore(store or tmp_path / "store", force)
        return calibrate(Target.open(pair.target), samples, settings or Settings(), kept, progress)

    return run
