"""What a build does beside tracing and writing, against hand calculations from the published shapes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from peagle.compiler.forecast.build_work import BuildWork
from peagle.compiler.precision.precision_options import PrecisionAsked
from peagle.compiler.precision.recipes import RECIPES
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.targets.weight_roles import RoledWeight

CONFIG = Path(__file__).parents[3] / "compiler" / "bundled" / "models" / "qwen3-coder-30b" / "config.json"
EXPERTS, ATTENTION = 128 * 3 * 768 * 2048, 2 * (32 + 4) * 128 * 2048
LAYER = EXPERTS + ATTENTION + 128 * 2048 + 2 * 2048 + 2 * 128  # a router and norms


@cache
def census() -> tuple[RoledWeight, ...]:
    return Skeleton(json.loads(CONFIG.read_text())).weights


def work(precision: str, lowering: str, *, plans: bool = False, asked: PrecisionAsked | None = None) -> BuildWork:
    recipe = (asked or PrecisionAsked()).of(RECIPES[precision].on("bf16", LOWERINGS[lowering]))
    return BuildWork.of(census(), recipe, LOWERINGS[lowering], 31 * 10**9, plans=plans)


def test_qwen3_coder_in_fp8_by_hand() -> None:
    found = work("fp8", "tensorrt", plans=True)
    assert found.calibration_bytes == 4 * LAYER
    assert found.calibration_seconds == pytest.approx(0.6e-9 * 48 * LAYER)
    assert found.rounding_seconds == pytest.approx((2 * 0.6e-9 + 6.6e-9) * 48 * (EXPERTS + ATTENTION))
    assert found.builder_bytes == 3.07 * 31 * 10**9


@pytest.mark.parametrize(
    ("precision", "lowering", "calibrates", "rounds"),
    [
        ("bf16", "tensorrt", False, False), ("int8", "tensorrt", True, True), ("int4", "tensorrt", False, True),
        ("mxfp8", "tensorrt", False, True), ("fp8", "ort", True, True), ("int8", "ort", False, True),
        ("fp8", "tensorrt-sm100", True, True),
    ],
)  # fmt: skip
def test_only_what_a_recipe_needs_is_told(precision: str, lowering: str, calibrates: bool, rounds: bool) -> None:
    found = work(precision, lowering)
    assert (found.calibration_bytes > 0, found.calibration_seconds > 0) == (calibrates, calibrates)
    assert (found.rounding_seconds > 0) == rounds
    assert found.builder_bytes == 0


def test_caches_in_fp8_are_calibrated_for() -> None:
    assert work("bf16", "tensorrt", asked=PrecisionAsked(kv_cache="fp8")).calibration_bytes == 4 * LAYER
