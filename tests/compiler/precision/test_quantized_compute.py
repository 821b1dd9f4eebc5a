"""A recipe that quantizes both operands counts products with both in its type, including experts."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.quantized_compute import computed_wide, require_multiplied, shares
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.weight_selection import Selection
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.targets.weight_roles import RoledWeight
from peagle.plugins.errors import BuildError, UsageError

MODELS = Path(__file__).parents[3] / "compiler" / "bundled" / "models"
QWEN, GPT_OSS, DENSE = "qwen3-coder-30b", "gpt-oss-120b", "gemma-4-31b"


@cache
def weights(model: str) -> tuple[RoledWeight, ...]:
    return Skeleton(json.loads((MODELS / model / "config.json").read_text())).weights


def selection(model: str, precision: str, lowering: str, asked: PrecisionOptions | None = None) -> Selection:
    recipe = (asked or PrecisionOptions()).of(RECIPES[precision].on("bf16", LOWERINGS[lowering]))
    return Selection.of_target(weights(model), recipe)


def multiplied(model: str, precision: str, lowering: str) -> float:
    selected = selection(model, precision, lowering)
    return shares(selected, LOWERINGS[lowering], {}, computed_wide(selected, LOWERINGS[lowering])).multiplied


def test_expert_layer_computes_fp8_and_three_percent_of_int8() -> None:
    assert multiplied(QWEN, "fp8", "tensorrt-sm100") == multiplied(QWEN, "fp8", "tensorrt") == 1
    assert multiplied(QWEN, "int8", "tensorrt-sm100") == pytest.approx(0.0303, abs=5e-4)


@pytest.mark.parametrize("precision", ["int8", "mxfp8"])
@pytest.mark.parametrize("model", [QWEN, GPT_OSS])
def test_a_build_that_falls_short_is_refused_with_the_true_share(model: str, precision: str) -> None:
    lowering = LOWERINGS["tensorrt-sm100"]
    share = multiplied(model, precision, "tensorrt-sm100")
    with pytest.raises(BuildError) as caught:
        require_multiplied(selection(model, precision, "tensorrt-sm100"), lowering)
    error = caught.value
    assert error.exit_code == 5
    assert f"{share:.1%} of the weights that --precision {precision} quantizes would be computed" in error.what
    assert "routed experts" in error.why
    assert "layers.0.mlp.experts.gate_up_proj" in error.why
    assert "--allow-wide experts" in error.fix
    assert "build in fp8, the nearest" in error.fix
    assert ("--experts dense" in error.fix) == (precision == "int8"), "MXFP8 experts are wide in either form"
    require_multiplied(
        selection(model, precision, "tensorrt-sm100", PrecisionOptions(allow_wide=("experts",))), lowering
    )


@pytest.mark.parametrize(
    ("model", "precision", "lowering"),
    [(QWEN, "int4", "tensorrt-sm100"), (QWEN, "fp8", "tensorrt-sm100"), (DENSE, "fp8", "tensorrt-sm100"),
     (DENSE, "mxfp8", "tensorrt"),
     (QWEN, "int8", "tensorrt"), (QWEN, "fp8", "ort"), (QWEN, "mxfp8", "std"), (QWEN, "int8", "ort")],
)  # fmt: skip
def test_fully_quantized_build_needs_no_permission(model: str, precision: str, lowering: str) -> None:
    require_multiplied(selection(model, precision, lowering), LOWERINGS[lowering])


def test_nearest_honest_recipe_is_suggested() -> None:
    with pytest.raises(BuildError, match="mxfp8") as caught:
        require_multiplied(selection(QWEN, "mxfp8", "tensorrt"), LOWERINGS["tensorrt"])
    assert "build in fp8, the nearest recipe whose weights are all computed in its type" in caught.value.fix


def test_experts_that_are_excluded_do_not_count() -> None:
    asked = PrecisionOptions(exclude=("*.mlp.experts",))
    require_multiplied(selection(QWEN, "int8", "tensorrt-sm100", asked), LOWERINGS["tensorrt-sm100"])


def test_permission_covers_the_group_alone() -> None:
    selected = selection(QWEN, "int8", "tensorrt-sm100", PrecisionOptions(allow_wide=("experts",)))
    attention = {name: "bfloat16" for name, weight in selected.weights.items() if weight.role == "attention"}
    experts = computed_wide(selected, LOWERINGS["tensorrt-sm100"])
    counted = shares(selected, LOWERINGS["tensorrt-sm100"], {}, attention | experts)
    assert counted.multiplied == pytest.approx(0)
    assert counted.accepted == pytest.approx(1 - 0.0303, abs=5e-4)
    narrow = replace(selected, weights={name: selected.weights[name] for name in attention})
    assert shares(narrow, LOWERINGS["tensorrt-sm100"], {}, attention).accepted == 0


def test_emulation_computes_nothing_quantized_and_is_accepted() -> None:
    assert shares(selection(QWEN, "fp8", "ort"), LOWERINGS["ort"], {}, {}) == (1, pytest.approx(0), 1)
    assert shares(selection(QWEN, "int8", "ort"), LOWERINGS["ort"], {}, {}) == (1, 1, 1)


def test_permission_only_covers_experts() -> None:
    with pytest.raises(UsageError, match="--allow-wide does not support 'attention'"):
        PrecisionOptions(allow_wide=("attention",)).check()
    PrecisionOptions(allow_wide=("experts",)).check()


def test_permission_is_recorded_and_read_back() -> None:
    recipe = PrecisionOptions(allow_wide=("experts",)).of(RECIPES["fp8"])
    assert recipe.record()["allow_wide"] == "experts"
    assert PrecisionOptions.recorded(recipe.record()).of(RECIPES["fp8"]) == recipe
    assert PrecisionOptions(allow_wide=("experts",)).of(RECIPES["bf16"]) == RECIPES["bf16"], "nothing is narrow in it"
