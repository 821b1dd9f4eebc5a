"""The list of unquantized modules in ModelOpt's configuration."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.pipeline.quantize.modelopt_config import listed_modules

_MODULES = st.sets(
    st.tuples(st.integers(0, 12), st.sampled_from(["mlp", "attn"]), st.sampled_from(["up", "down", "up2"])).map(
        lambda parts: "model.layers.{}.{}.{}".format(*parts)
    ),
    min_size=1,
)


@settings(deadline=None, max_examples=30)
@given(modules=_MODULES, data=st.data())
def test_excluded_modules_pattern_matches_exactly_the_unquantized_ones(modules: set[str], data: st.DataObject) -> None:
    wide = data.draw(st.sets(st.sampled_from(sorted(modules)))) | {"lm_head"}
    patterns = listed_modules(wide, modules - wide)
    assert patterns == sorted(set(patterns))
    assert {m for m in modules | wide if any(fnmatchcase(m, p) for p in patterns)} == wide


def test_the_list_is_as_short_as_modelopts() -> None:
    layers = [f"model.layers.{i}.mlp.{name}" for i in range(12) for name in ("up", "down")]
    wide = ["lm_head", *layers[:4], "model.vision_tower.a.b", "model.vision_tower.c"]
    found = listed_modules(wide, set(layers) - set(wide))
    assert found == ["lm_head", "model.layers.0*", "model.layers.1.*", "model.vision_tower*"]
