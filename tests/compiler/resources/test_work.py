"""The work of a build besides tracing and writing, compared with hand calculations from published shapes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.resources import work as measured
from peagle.compiler.resources.work import BuilderWork, BuildWork, Calibration
from peagle.compiler.resources.workload import Workload
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.targets.weight_roles import RoledWeight
from peagle.plugins.number_formats import NUMBER_FORMATS

CONFIG = Path(__file__).parents[3] / "compiler" / "bundled" / "models" / "qwen3-coder-30b" / "config.json"
EXPERTS, ATTENTION = 128 * 3 * 768 * 2048, 2 * (32 + 4) * 128 * 2048
GB = 10**9
LAYER = EXPERTS + ATTENTION + 128 * 2048 + 2 * 2048 + 2 * 128  # a router and norms


@cache
def census() -> tuple[RoledWeight, ...]:
    return Skeleton(json.loads(CONFIG.read_text())).weights


def work(precision: str, lowering: str, asked: PrecisionOptions | None = None, **known: Any) -> BuildWork:
    recipe = (asked or PrecisionOptions()).of(RECIPES[precision].on("bf16", LOWERINGS[lowering]))
    options: dict[str, Any] = {"calibration": Calibration(1000, 8)} | known
    return Workload(census(), recipe, LOWERINGS[lowering], **options).work


def test_qwen3_coder_in_fp8_by_hand() -> None:
    found = work("fp8", "tensorrt", product="tensorrt-rtx")
    assert found.calibration is not None
    assert found.calibration.bytes == 4 * LAYER
    assert found.calibration.operations == pytest.approx(2 * 1000 * 48 * (LAYER - EXPERTS * 120 / 128))
    assert found.rounding_seconds == pytest.approx(
        (2 * measured.READ + NUMBER_FORMATS["fp8"].rounding_seconds) * 48 * (EXPERTS + ATTENTION)
    )
    assert found.builder
    assert found.builder == BuilderWork.of("tensorrt-rtx", int(found.builder.bytes / measured.BUILDER_PEAK), 48)


@pytest.mark.parametrize(
    ("precision", "lowering", "calibrates", "rounds"),
    [
        ("bf16", "tensorrt", False, False), ("int8", "tensorrt", True, True), ("int4", "tensorrt", False, True),
        ("mxfp8", "tensorrt", False, True), ("fp8", "ort", True, True), ("int8", "ort", False, True),
        ("fp8", "tensorrt-sm100", True, True),
    ],
)  # fmt: skip
def test_only_needed_work_is_estimated(precision: str, lowering: str, calibrates: bool, rounds: bool) -> None:
    found = work(precision, lowering)
    assert (found.calibration is not None) == calibrates
    assert (found.rounding_seconds > 0) == rounds
    assert found.builder is None


def test_caches_in_fp8_are_calibrated_for() -> None:
    assert work("bf16", "tensorrt", PrecisionOptions(kv_cache="fp8")).calibration == work("fp8", "tensorrt").calibration


def test_ranges_that_are_there_are_not_calibrated_again() -> None:
    assert work("fp8", "tensorrt", calibration=None).calibration is None
    assert work("fp8", "tensorrt", calibrates=False).calibration is None


def test_reused_weights_need_no_rounding() -> None:
    assert work("fp8", "tensorrt", stored=frozenset(weight.name for weight in census())).rounding_seconds == 0


def test_rtx_estimate_matches_the_measurement() -> None:
    found = BuilderWork.of("tensorrt-rtx", 10 * GB, 48)
    assert found.bytes == int(measured.BUILDER_PEAK * 10 * GB)
    assert 0 < found.least_bytes < 10 * GB
    assert found.seconds == 48 * measured.BUILD_LAYER + 10 * GB * measured.BUILD_BYTE


def test_single_layer_estimate_matches_the_benchmark() -> None:
    assert 4 < BuilderWork.of("tensorrt-rtx", int(1.31 * GB), 1).seconds < 8
    assert 40 < BuilderWork.of("tensorrt-rtx", int(0.26 * GB), 48).seconds < 60


def test_of_full_tensorrt_neither_a_least_nor_a_time_is_claimed() -> None:
    found = BuilderWork.of("tensorrt", 10 * GB, 48)
    assert found.bytes == BuilderWork.of("tensorrt-rtx", 10 * GB, 48).bytes
    assert (found.least_bytes, found.seconds) == (0, 0.0)
