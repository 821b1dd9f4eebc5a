"""Groups of quantized matrices, and the patterns that exclude them."""

from __future__ import annotations

from peagle.compiler.precision.on_the_fly_quantizer import OnTheFlyQuantizer
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.weight_selection import Selection
from peagle.compiler.verify.weight_groups import groups_of, patterns_of
from peagle.graphs.lowering import TENSORRT
from peagle.graphs.targets.weight_roles import Role, RoledWeight


def test_groups_have_patterns_that_name_them_alone() -> None:
    roles: dict[str, Role] = {
        "model.layers.0.self_attn.q_proj.weight": "attention",
        "model.layers.0.self_attn.o_proj.weight": "attention",
        "model.layers.0.mlp.gate_proj.weight": "mlp",
        "model.layers.0.mlp.experts.down_proj": "experts",
        "model.layers.1.mlp.gate_proj.weight": "mlp",
        "model.layers.1.mlp.up_proj.weight": "mlp",
        "lm_head.weight": "lm_head",
    }
    recipe = PrecisionOptions(lm_head="int8").of(RECIPES["int8"])
    selection = Selection(recipe, {name: RoledWeight(name, (64, 64), role, 1) for name, role in roles.items()})
    groups = groups_of(OnTheFlyQuantizer(selection, TENSORRT, lambda *_: iter(())))
    assert {group.name: group.patterns for group in groups} == {
        "layer 0 attention": ("layers.0.self_attn.*",),
        "layer 0 mlp": ("layers.0.mlp.gate_proj",),
        "layer 0 experts": ("layers.0.mlp.experts.down_proj",),
        "layer 1 mlp": ("layers.1.mlp.*",),
        "lm_head": ("lm_head",),
    }
    assert patterns_of(groups[:2], groups) == ("layers.0.self_attn.*", "layers.0.mlp.gate_proj")
    assert patterns_of([*groups[:3], groups[4]], groups) == ("layers.0.*", "lm_head")
