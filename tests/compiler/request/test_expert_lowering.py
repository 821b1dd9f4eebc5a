"""Routed experts for TensorRT use its expert layer or are dense, as requested, else as the model requires."""

from __future__ import annotations

import pytest

from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.request.expert_lowering import FORMS, lowering_with_experts, select_expert_lowering
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets import FAMILIES
from peagle.plugins.errors import UsageError

FAMILY = {family.name: family for family in FAMILIES}
GEMMA = FAMILY["gemma-4"], {"text_config": {"enable_moe_block": True}}
SM100, DENSE, ORT = (LOWERINGS[name] for name in ("tensorrt-sm100", "tensorrt", "ort"))


@pytest.mark.parametrize("name", sorted(FAMILY))
def test_model_supports_the_expert_layer_unless_its_math_differs(name: str) -> None:
    lowering, said = select_expert_lowering(SM100, None, FAMILY[name], {})
    assert lowering is (DENSE if name == "gpt-oss" else SM100)
    assert bool(said) == (name == "gpt-oss")
    assert all("routed experts are dense" in each and "--experts layer" in each for each in said)
    assert select_expert_lowering(DENSE, None, FAMILY[name], {}) == (DENSE, [])
    assert select_expert_lowering(ORT, None, FAMILY[name], {}) == (ORT, [])


def test_explicit_expert_form_is_used_silently() -> None:
    for form in ("layer", "layer-one-scale"):
        lowering = lowering_with_experts(SM100, form)
        assert (lowering.name, lowering.experts_share_scale) == (SM100.name, form != "layer")
    assert lowering_with_experts(SM100, "dense").name == lowering_with_experts(DENSE, "dense").name == DENSE.name
    assert select_expert_lowering(SM100, "layer", FAMILY["gpt-oss"], {}) == (SM100, [])


@pytest.mark.parametrize("stored", ["", "MXFP4"])
def test_experts_with_gelu_are_dense_and_refuse_the_layer(stored: str) -> None:
    """However they are stored: this project's ops for MXFP4 have no GELU either."""
    lowering, (said,) = select_expert_lowering(SM100, None, *GEMMA, stored)
    assert lowering is DENSE
    assert "routed experts are dense" in said
    assert "no GELU" in said
    assert select_expert_lowering(DENSE, "dense", *GEMMA, stored) == (DENSE, [])
    assert select_expert_lowering(ORT, None, *GEMMA, stored) == (ORT, [])
    for form in ("layer", "layer-one-scale"):
        with pytest.raises(UsageError, match=f"--experts {form} is not supported") as caught:
            select_expert_lowering(lowering_with_experts(SM100, form), form, *GEMMA, stored)
        assert "no GELU" in caught.value.why


def test_experts_in_mxfp4_stay_so_unless_a_form_is_named() -> None:
    assert select_expert_lowering(SM100, None, FAMILY["gpt-oss"], {}, "MXFP4") == (SM100, [])
    assert select_expert_lowering(SM100, None, FAMILY["gpt-oss"], {}, "Q4_0")[0] is DENSE
    for form in FORMS:
        named = lowering_with_experts(SM100, form)
        assert SM100.expert_blocks
        assert not named.expert_blocks
        recipe = RECIPES["fp8"]
        assert recipe.keeping_experts("MXFP4", named) is recipe
        assert recipe.keeping_experts("MXFP4", SM100).experts != recipe.experts


@pytest.mark.parametrize(
    ("lowering", "asked", "why"),
    [
        (DENSE, "layer", "on sm_100, sm_103, sm_110"),
        (DENSE, "layer-one-scale", "on sm_100, sm_103, sm_110"),
        (ORT, "dense", "selects a lowering for TensorRT"),
        (SM100, "Layer", "layer, layer-one-scale, dense"),
    ],
)
def test_unknown_expert_form_is_rejected(lowering: object, asked: str, why: str) -> None:
    with pytest.raises(UsageError, match=asked) as caught:
        lowering_with_experts(lowering, asked)  # type: ignore[arg-type]
    assert why in caught.value.why
