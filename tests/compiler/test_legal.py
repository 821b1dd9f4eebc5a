"""Which tables of types can be had where: a refusal says why, and names what can."""

from __future__ import annotations

import pytest

from peagle.compiler.legal import available, require_known, require_legal, supports
from peagle.compiler.recipes import RECIPES, Overrides, Recipe
from peagle.plugins.errors import UsageError

ORT, RTX = "ort", "tensorrt"


def table(name: str, lowering: str, **overrides: str) -> Recipe:
    wide = "fp32" if lowering == ORT else "bf16"
    return Overrides(**overrides).of(RECIPES[name].on(wide, lowering))


@pytest.mark.parametrize(
    ("name", "lowering", "gpus"),
    [
        *((name, ORT, ()) for name in ("fp32", "fp8", "mxfp8", "int8", "int4")),
        *((name, RTX, ("sm_80", "sm_120")) for name in ("bf16", "int8", "int4")),
        ("fp8", RTX, ("sm_89", "sm_90", "sm_120")),
        ("mxfp8", RTX, ("sm_100", "sm_103")),
    ],
)
def test_what_runs_is_legal(name: str, lowering: str, gpus: tuple[str, ...]) -> None:
    assert name in available(lowering)
    require_legal(table(name, lowering), lowering, gpus)


REFUSED = [
    ("fp32", RTX, ("sm_120",), {}, "no attention kernel", "--precision fp16 or bf16"),
    ("bf16", ORT, (), {}, "computes in fp32", "--precision fp32"),
    ("fp8", RTX, ("sm_80",), {}, "FP8 from sm_89", "--precision int8, bf16 or fp16"),
    ("fp8", RTX, ("sm_86", "sm_120"), {}, "FP8 from sm_89", "--gpu sm_120"),
    ("mxfp8", RTX, ("sm_89", "sm_120"), {}, "on sm_100, sm_103, sm_110 only", "--precision fp8"),
    ("mxfp8", RTX, ("sm_80",), {}, "sm_100", "--precision int8"),
    ("int8", RTX, ("sm_75",), {}, "INT8 from sm_80", "bf16 or fp16"),
    ("bf16", RTX, ("sm_80",), {"drafter": "fp8"}, "FP8 from sm_89", "--draft-precision int8"),
    ("bf16", RTX, ("sm_80",), {"lm_head": "fp8"}, "FP8 from sm_89", "--lm-head-precision int8"),
    ("bf16", RTX, ("sm_80",), {"kv_cache": "fp8"}, "FP8 from sm_89", "--kv-cache-dtype bf16 or fp16"),
    ("int8", ORT, (), {"kv_cache": "fp8"}, "keys and values", "leave --kv-cache-dtype out"),
    ("int8", ORT, (), {"kv_cache": "int8"}, "or in fp8", "leave it out"),
    ("int8", RTX, (), {"kv_cache": "fp16"}, "the type that the model computes in", "fp8"),
    ("fp8", RTX, (), {"drafter": "mxfp8"}, "fp8, int8, int4", "--draft-precision fp8"),
    ("fp8", RTX, (), {"drafter": "fp4"}, "fp8, int8, int4", "--draft-precision bf16"),
    ("fp8", RTX, (), {"drafter": "fp16"}, "features", "--draft-precision bf16"),
    ("fp8", RTX, (), {"lm_head": "fp4"}, "fp8, mxfp8, int8, int4", "--lm-head-precision fp8"),
]


@pytest.mark.parametrize(("name", "lowering", "gpus", "overrides", "why", "fix"), REFUSED)
def test_what_does_not_run_is_refused_with_the_reason_and_the_nearest_that_does(
    name: str, lowering: str, gpus: tuple[str, ...], overrides: dict[str, str], why: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        require_legal(table(name, lowering, **overrides), lowering, gpus)
    assert why in caught.value.why
    assert fix in caught.value.fix


@pytest.mark.parametrize("overrides", [{"drafter": "fp16"}, {"kv_cache": "fp16"}, {"lm_head": "fp16"}])
def test_what_depends_on_the_checkpoint_waits_for_it(overrides: dict[str, str]) -> None:
    recipe = table("fp8", RTX, **overrides)
    require_legal(recipe, RTX, settled=False)
    with pytest.raises(UsageError):
        require_legal(recipe, RTX)


def test_there_must_be_something_to_exclude_from() -> None:
    with pytest.raises(UsageError, match="nothing to exclude from"):
        require_legal(Overrides(exclude=("layers.0.*",)).of(RECIPES["fp32"]), ORT)
    require_legal(Overrides(exclude=("layers.0.*",)).of(RECIPES["int4"].on("fp32", ORT)), ORT)


def test_names_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match="fp7") as caught:
        require_known("fp7")
    assert "mxfp8" in caught.value.why
    require_known(None)
    with pytest.raises(UsageError, match="coreml"):
        available("coreml")


@pytest.mark.parametrize("gpu", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_a_gpu_that_has_a_narrower_type_has_the_wider_ones(gpu: str) -> None:
    has = [kind for kind in ("int8", "fp8", "mxfp8") if supports(gpu, kind)]
    assert has == ["int8", "fp8", "mxfp8"][: len(has)]
    assert supports(gpu, "bf16")
