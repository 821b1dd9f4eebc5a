"""The weights that a recipe quantizes, and the reasons why others stay unquantized."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.weight_selection import Selection, WideWeight
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets.weight_roles import RoledWeight
from peagle.plugins.errors import UsageError
from tests.models import make_pair

CENSUS = (
    RoledWeight("model.embed_tokens.weight", (96, 48), "embedding", 1),
    RoledWeight("model.layers.0.self_attn.q_proj.weight", (64, 48), "attention", 1),
    RoledWeight("model.layers.0.mlp.up_proj.weight", (80, 48), "mlp", 1),
    RoledWeight("model.norm.weight", (48,), "other", 0),
)
HEAD = RoledWeight("lm_head.weight", (96, 48), "lm_head", 1)
Q, UP = CENSUS[1].name, CENSUS[2].name


def test_selected_matrices_follow_recipe_roles_and_others_are_listed() -> None:
    selection = Selection.of_target((*CENSUS, HEAD), RECIPES["int8"])
    assert selection.weights == {Q: CENSUS[1], UP: CENSUS[2]}
    assert selection.count == 48 * (64 + 80)
    assert selection.wide == {
        "model.embed_tokens.weight": WideWeight("embedding"),
        "model.norm.weight": WideWeight("other"),
        "lm_head.weight": WideWeight("lm_head"),
    }


def test_a_tied_head_is_the_embedding_by_the_head_s_name() -> None:
    quantized = Selection.of_target(CENSUS, PrecisionOptions(lm_head="int8").of(RECIPES["int8"]))
    assert quantized.weights["lm_head.weight"].shape == (96, 48)
    assert set(quantized.wide) == {"model.norm.weight"}
    wide = Selection.of_target(CENSUS, RECIPES["int8"])
    assert wide.wide["model.embed_tokens.weight"] == WideWeight("lm_head")


def test_exclusion_names_its_pattern() -> None:
    selection = Selection.of_target(CENSUS, PrecisionOptions(exclude=("*.mlp.*",)).of(RECIPES["int8"]))
    assert set(selection.weights) == {Q}
    assert selection.wide[UP] == WideWeight("mlp", "excluded by '*.mlp.*'")
    with pytest.raises(UsageError, match="matches no matrix that would be quantized"):
        Selection.of_target(CENSUS, PrecisionOptions(exclude=("*.experts",)).of(RECIPES["int8"]))


def test_some_of_a_selection_is_one_too_and_has_a_share() -> None:
    selection = Selection.of_target(CENSUS, RECIPES["int8"])
    assert set(selection.only({UP}).weights) == {UP}
    assert selection.share_without([]) == 1
    assert selection.share_without([UP]) == pytest.approx(64 / (64 + 80))
    assert selection.only(()).share_without([]) == 0


def test_drafter_matrices_have_one_role_and_outer_ones_stay_unquantized_for_tensorrt(tmp_path: Path) -> None:
    _, head = make_pair(tmp_path, "qwen3").specs()
    recipe = PrecisionOptions(drafter="int8").of(RECIPES["bf16"])
    names = {name: Selection.of_drafter(head, recipe, LOWERINGS[name]).weights for name in ("ort", "tensorrt")}
    assert set(names["ort"]) - set(names["tensorrt"]) == {"fc.weight", "lm_head.weight"}
    assert {weight.role for weight in names["ort"].values()} == {"drafter"}
    assert "embed_tokens.weight" not in names["ort"]


def test_only_weights_in_blocks_keep_them() -> None:
    """An embedding is selected under its own name, or as the head that it is; its rows are not multiplied with."""
    recipe = RECIPES["stored"].on("fp32", LOWERINGS["cpu"])
    selection = Selection.of_target((*CENSUS, HEAD), recipe, {Q, "model.embed_tokens.weight", "lm_head.weight"})
    assert set(selection.weights) == {Q, "model.embed_tokens.weight", "lm_head.weight"}
    assert selection.wide[UP] == WideWeight("mlp", "not stored in blocks that the kernels support")
    assert selection.count == 48 * (64 + 96)
    assert selection.share_without(["model.embed_tokens.weight"]) == 1
    assert selection.only(["model.embed_tokens.weight"]).share_without([]) == 1
    tied = Selection.of_target(CENSUS, recipe, {Q, "lm_head.weight"})
    assert set(tied.weights) == {Q, "lm_head.weight"}
    assert set(Selection.of_target(CENSUS, recipe).weights) == {Q, UP, "lm_head.weight"}, "where no file is known"
    excluded = PrecisionOptions(exclude=("*.q_proj",)).of(recipe)
    assert set(Selection.of_target(CENSUS, excluded, {Q, "lm_head.weight"}).weights) == {"lm_head.weight"}
