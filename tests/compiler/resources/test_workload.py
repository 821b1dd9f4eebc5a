"""The bytes needed from a local checkpoint, and those that a calibration reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.pipeline.quantize import quantize
from peagle.compiler.precision.calibration.calibration_options import CalibrationOptions
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.request.verb_options import QUANTIZE
from peagle.compiler.resources.work import Calibration
from peagle.compiler.resources.workload import Workload, calibration_of
from peagle.compiler.store.stages import StageStore
from peagle.graphs.lowering import LOWERINGS, TENSORRT
from tests.models import Pair, make_pair


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"), "qwen3")


@pytest.fixture(scope="module")
def fp8(wide: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, in FP8 with scales for its inputs."""
    folder = tmp_path_factory.mktemp("fp8")
    request = QUANTIZE.request(model=str(wide.target), out=folder / "fp8", calib_samples=2, calib_length=200)
    return quantize(request, store=StageStore(folder / "cache")).path


def workload(folder: Path) -> Workload:
    target = Target.open(folder)
    recipe = RECIPES["fp8"].on("bf16", TENSORRT)
    return Workload(target.skeleton.weights, recipe, TENSORRT, calibration=Calibration(1000)).found_in(target)


def test_unquantized_checkpoint_is_calibrated_and_rounded(wide: Pair) -> None:
    work = workload(wide.target).work
    assert work.calibration
    assert work.rounding_seconds > 0


def test_scaled_fp8_checkpoint_needs_neither(fp8: Path, wide: Pair) -> None:
    found = workload(fp8)
    assert (found.work.calibration, found.work.rounding_seconds) == (None, 0.0)
    assert found.bytes == workload(wide.target).bytes


def test_calibration_has_the_requested_length() -> None:
    assert calibration_of(CalibrationOptions(num_samples=3, max_length=5), {"num_experts_per_tok": 8}) == Calibration(
        15, 8
    )
    assert calibration_of(CalibrationOptions(device="cuda"), {}) == Calibration(128 * 512, device="cuda")
    assert calibration_of(CalibrationOptions(), {}) == Calibration(128 * 512)
    for name in ("cpu", "ort"):
        assert calibration_of(CalibrationOptions(), {}, LOWERINGS[name]) == Calibration(16 * 128)
        assert calibration_of(CalibrationOptions(num_samples=64), {}, LOWERINGS[name]) == Calibration(64 * 128)
    assert calibration_of(CalibrationOptions(scales=Path("ranges")), {}) is None
