"""The recipes that each backend supports: a refusal gives the reason and names a supported recipe."""

from __future__ import annotations

import re
from typing import Any

import pytest

from peagle.compiler.hardware.gpus import supports
from peagle.compiler.precision.allowed_recipes import available, lowering_for, require_known, require_legal, wide_names
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES, Recipe
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.errors import UsageError

ORT, CPU, RTX = "ort", "cpu", "tensorrt"


def table(name: str, lowering: str, **overrides: str) -> Recipe:
    wide = "bf16" if lowering == RTX else "fp32"
    return PrecisionOptions(**overrides).of(RECIPES[name].on(wide, LOWERINGS[lowering]))


@pytest.mark.parametrize(
    ("name", "lowering", "gpus"),
    [
        *((name, ORT, ()) for name in ("fp32", "fp8", "mxfp8", "int8", "int4")),
        *((name, CPU, ()) for name in ("fp32", "int8", "int4", "stored")),
        *((name, RTX, ("sm_80", "sm_120")) for name in ("bf16", "int8", "int4")),
        ("fp8", RTX, ("sm_89", "sm_90", "sm_120")),
        ("mxfp8", RTX, ("sm_100", "sm_103")),
    ],
)
def test_every_working_recipe_is_accepted(name: str, lowering: str, gpus: tuple[str, ...]) -> None:
    assert name in available(LOWERINGS[lowering])
    require_legal(table(name, lowering), LOWERINGS[lowering], gpus)


REFUSED = [
    ("fp32", RTX, ("sm_120",), {}, "no attention kernel", "--precision fp16 or bf16"),
    ("bf16", ORT, (), {}, "computes in fp32", "--precision fp32"),
    (
        "stored",
        ORT,
        (),
        {},
        "only this project's CPU kernels compute",
        "use the lowering cpu, or use --precision fp32",
    ),
    (
        "stored",
        RTX,
        ("sm_120",),
        {},
        "for TensorRT, all blocks are dequantized except routed experts in MXFP4",
        "--precision fp16 or bf16",
    ),
    ("int4", ORT, (), {"lm_head": "stored"}, "fp8, mxfp8, int8, int4", "--lm-head-precision"),
    ("fp8", RTX, ("sm_80",), {}, "FP8 requires sm_89", "--precision int8, bf16 or fp16"),
    ("fp8", RTX, ("sm_86", "sm_120"), {}, "FP8 requires sm_89", "--gpu sm_120"),
    ("mxfp8", RTX, ("sm_89", "sm_120"), {}, "only on sm_100, sm_103, sm_110", "--precision fp8"),
    ("mxfp8", RTX, ("sm_80",), {}, "sm_100", "--precision int8"),
    ("int8", RTX, ("sm_75",), {}, "INT8 requires sm_80", "bf16 or fp16"),
    ("mxfp8", RTX, ("sm_120",), {}, "on sm_100", "--backend tensorrt on a host that has sm_100"),
    ("bf16", RTX, ("sm_80",), {"drafter": "fp8"}, "multiplies FP8 weights only by FP8", "--draft-precision int8"),
    ("bf16", RTX, ("sm_75",), {"drafter": "int4"}, "INT4 requires sm_80", "omit --draft-precision"),
    ("bf16", RTX, ("sm_80",), {"lm_head": "fp8"}, "FP8 requires sm_89", "--lm-head-precision int8"),
    ("bf16", RTX, ("sm_80",), {"kv_cache": "fp8"}, "FP8 requires sm_89", "omit --kv-cache-dtype"),
    (
        "int8",
        ORT,
        (),
        {"kv_cache": "fp8"},
        "keys and values",
        "omit --kv-cache-dtype to keep caches in fp32, or build for a GPU of sm_89 or newer",
    ),
    ("int8", ORT, (), {"kv_cache": "fp16"}, "in their compute type, fp32; only this", "omit --kv-cache-dtype"),
    ("fp32", CPU, (), {"kv_cache": "fp8"}, "in fp32 or fp16 or int8", "use --kv-cache-dtype fp16"),
    ("fp32", CPU, (), {"kv_cache": "bf16"}, "or in fp16 or int8", "--kv-cache-dtype fp16"),
    ("fp32", ORT, (), {"kv_cache": "bf16"}, "the compute type of the model", "omit the option"),
    ("int8", RTX, ("sm_80",), {"kv_cache": "int8"}, "or in fp8", "omit the option"),
    ("int8", RTX, ("sm_89",), {"kv_cache": "int8"}, "or in fp8", "--kv-cache-dtype fp8"),
    ("int8", RTX, (), {"kv_cache": "fp16"}, "the compute type of the model", "fp8"),
    ("fp8", RTX, (), {"drafter": "fp8"}, "multiplies FP8 weights only by FP8", "--draft-precision int8"),
    ("fp8", RTX, (), {"drafter": "mxfp8"}, "int8, int4, and the compute type of the target", "--draft-precision int8"),
    ("fp8", ORT, (), {"drafter": "mxfp8"}, "fp8, int8, int4", "--draft-precision fp8"),
    ("fp8", RTX, (), {"drafter": "fp4"}, "int8, int4", "--draft-precision int8"),
    ("fp8", ORT, (), {"drafter": "INT4"}, "int8, int4", "--draft-precision int4"),
    ("fp8", RTX, (), {"drafter": "fp16"}, "hidden states", "--draft-precision bf16"),
    ("fp8", RTX, (), {"lm_head": "fp4"}, "fp8, mxfp8, int8, int4", "--lm-head-precision fp8"),
    ("int8", RTX, ("sm_80",), {"lm_head": "fp4"}, "fp8, mxfp8, int8, int4", "--lm-head-precision int8"),
]
FLAGS = {"--lm-head-precision": "lm_head", "--draft-precision": "drafter", "--kv-cache-dtype": "kv_cache"}
_OFFER = r"(?<!leave )(--[a-z-]+) ((?:(?:, | or )?(?:m?x?fp\d+|bf16|int\d|sm_\d+)\b)+)"


@pytest.mark.parametrize(("name", "lowering", "gpus", "overrides", "why", "fix"), REFUSED)
def test_unsupported_recipe_is_rejected_with_reason_and_nearest_alternative(
    name: str, lowering: str, gpus: tuple[str, ...], overrides: dict[str, str], why: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        require_legal(table(name, lowering, **overrides), LOWERINGS[lowering], gpus)
    assert why in caught.value.why
    assert fix in caught.value.fix


def _offered(fix: str, name: str, gpus: tuple[str, ...], overrides: dict[str, str]) -> list[tuple[Any, ...]]:
    """Every request that a ``fix`` suggests: precision, GPUs and overrides."""
    requests: list[tuple[Any, ...]] = []
    for flag, values in re.findall(_OFFER, fix):
        for value in re.split(", | or ", values):
            own = {FLAGS[flag]: value} if flag in FLAGS else {}
            kept = value if flag == "--precision" else name
            requests.append((kept, (value,) if flag == "--gpu" else gpus, overrides | own))
    if re.search(r"omit (the option|--[a-z-]+)", fix):
        requests.append((name, gpus, {}) if overrides else (None, gpus, {}))
    if match := re.search(r"on a host that has (sm_\d+)", fix):
        requests.append((name, (match[1],), overrides))
    return requests


@pytest.mark.parametrize(("name", "lowering", "gpus", "overrides", "why", "fix"), REFUSED)
def test_every_suggested_recipe_is_accepted(
    name: str, lowering: str, gpus: tuple[str, ...], overrides: dict[str, str], why: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        require_legal(table(name, lowering, **overrides), LOWERINGS[lowering], gpus)
    offered = _offered(caught.value.fix, name, gpus, overrides)
    assert offered
    for precision, on, others in offered:
        require_legal(
            table(precision or available(LOWERINGS[lowering])[0], lowering, **others), LOWERINGS[lowering], on
        )
        if lowering == RTX:  # for any wide type of the checkpoint
            chosen = RECIPES[precision or "fp16"].on("fp16", LOWERINGS[lowering])
            others = {key: "fp16" if kind == "bf16" else kind for key, kind in others.items()}
            require_legal(PrecisionOptions(**others).of(chosen), LOWERINGS[lowering], on)


@pytest.mark.parametrize("overrides", [{"drafter": "fp16"}, {"kv_cache": "fp16"}, {"lm_head": "fp16"}])
def test_checkpoint_dependent_recipe_is_deferred(overrides: dict[str, str]) -> None:
    recipe = table("fp8", RTX, **overrides)
    require_legal(recipe, LOWERINGS[RTX], wide_types=wide_names())
    with pytest.raises(UsageError):
        require_legal(recipe, LOWERINGS[RTX])


@pytest.mark.parametrize("name", ["fp32", "int8", "int4"])
def test_our_kernels_read_narrower_caches(name: str) -> None:
    for kind in LOWERINGS[CPU].cache_types:
        recipe = table(name, CPU, kv_cache=kind)
        require_legal(recipe, LOWERINGS[CPU])
        assert recipe.cache_type("target") == recipe.cache_type("drafter") == kind


def test_there_must_be_something_to_exclude_from() -> None:
    with pytest.raises(UsageError, match="has no effect"):
        require_legal(PrecisionOptions(exclude=("layers.0.*",)).of(RECIPES["fp32"]), LOWERINGS[ORT])
    ort = LOWERINGS[ORT]
    require_legal(PrecisionOptions(exclude=("layers.0.*",)).of(RECIPES["int4"].on("fp32", ort)), ort)


def test_unknown_names_are_rejected_with_valid_ones() -> None:
    with pytest.raises(UsageError, match="fp7") as caught:
        require_known("fp7")
    assert "mxfp8" in caught.value.why
    for given, meant in (("INT4", "int4"), ("int9", "int"), ("Bf16", "bf16"), ("float", "")):
        with pytest.raises(UsageError) as caught:
            require_known(given)
        assert f"use --precision {meant}" in caught.value.fix
    require_known(None)
    with pytest.raises(UsageError, match="coreml"):
        lowering_for("coreml")


@pytest.mark.parametrize("gpu", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_a_gpu_that_has_a_narrower_type_has_the_wider_ones(gpu: str) -> None:
    has = [kind for kind in ("int8", "fp8", "mxfp8") if supports(gpu, kind)]
    assert has == ["int8", "fp8", "mxfp8"][: len(has)]
    assert supports(gpu, "bf16")
