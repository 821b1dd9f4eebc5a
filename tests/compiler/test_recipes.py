"""What a precision stands for, and where it cannot be had."""

from __future__ import annotations

import pytest

from peagle.compiler.options import PRECISIONS
from peagle.compiler.recipes import RECIPES, require_gpus
from peagle.plugins.errors import UsageError


def test_every_precision_that_can_be_asked_for_has_a_recipe() -> None:
    assert set(RECIPES) == set(PRECISIONS)
    assert all(recipe.name == name for name, recipe in RECIPES.items())


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_a_wide_recipe_is_one_word(name: str) -> None:
    recipe = RECIPES[name].on("bf16")
    assert set(recipe.record().values()) == {name}
    assert (recipe.narrow, recipe.narrow_roles, recipe.share) == ("", frozenset(), 0)


@pytest.mark.parametrize(("wide", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_fp8_narrows_matrices_and_leaves_head_router_caches_and_drafter(wide: str, dtype: str) -> None:
    recipe = RECIPES["fp8"].on(wide)
    assert recipe.dtype == dtype
    assert recipe.narrow_roles == {"attention", "mlp", "experts"}
    assert recipe.record() == {
        "recipe": "fp8", "weights": "fp8", "activations": "fp8", "experts": "fp8", "expert_activations": wide,
        "kv_cache": wide, "lm_head": wide, "router": wide, "drafter": wide,
    }  # fmt: skip
    assert wide in recipe.says
    assert [recipe.precision(role) for role in ("mlp", "embedding", "other")] == ["fp8", wide, wide]


@pytest.mark.parametrize("gpus", [("sm_80",), ("sm_86", "sm_120")])
def test_fp8_is_refused_where_no_gpu_multiplies_in_it(gpus: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"not available on {gpus[0]}") as caught:
        require_gpus("fp8", gpus)
    assert "bf16 or fp16" in caught.value.fix
    require_gpus("bf16", gpus)
    require_gpus("fp8", ("sm_89", "sm_90", "sm_100", "sm_120"))
