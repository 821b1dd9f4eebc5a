"""Options next to a recipe change only what they name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES, patterns

QUANTIZED = [name for name, recipe in RECIPES.items() if recipe.quantized_type]


@given(
    st.sampled_from(sorted(RECIPES)),
    st.sampled_from([None, "fp8"]),
    st.sampled_from([None, *QUANTIZED]),
    st.sampled_from([None, "fp8", "int8", "int4"]),
)
def test_overrides_only_change_named_parts(
    name: str, kv_cache: str | None, lm_head: str | None, drafter: str | None
) -> None:
    before = RECIPES[name]
    after = PrecisionOptions(None, kv_cache, lm_head, drafter).of(before)
    given_ = {"kv_cache": kv_cache, "lm_head": lm_head, "drafter": drafter}
    for kind in ("weights", "activations", "kv_cache", "lm_head", "router", "drafter", "experts"):
        assert getattr(after, kind) == (given_.get(kind) or getattr(before, kind)), kind
    assert bool(after.share) == bool(after.quantized_type)
    assert after.is_quantized == (bool(before.quantized_type) or any(given_.values()))


@given(st.lists(st.text(min_size=1)).map(tuple))
def test_exclusions_are_read_back_from_the_record(exclude: tuple[str, ...]) -> None:
    assert patterns(PrecisionOptions(exclude=exclude).of(RECIPES["int4"]).record()) == exclude
