"""A build is decided once: one record holds what follows from a request and its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.checkpoints.resolve_names import resolve, resolve_target
from peagle.compiler.checkpoints.target_and_drafter import Inputs, read_inputs, read_target_alone
from peagle.compiler.precision.recipes import MULTIPLIED, RECIPES, Recipe
from peagle.compiler.request.build_plan import BuildPlan, plan_of_build, plan_of_export
from peagle.compiler.request.build_platform import BuildPlatform
from peagle.compiler.request.verb_options import BUILD, EXPORT
from peagle.engines.draft_methods import METHODS
from peagle.graphs.lowering import LOWERINGS
from tests.models import Pair

HERE = BuildPlatform("onnxruntime", "1", (), LOWERINGS["cpu"], runs_here=True)
RTX = BuildPlatform("tensorrt-rtx", "1", ("sm_120",), LOWERINGS["tensorrt"], runs_here=False)


def inputs_of(pair: Pair, draft: str | None = None, **sizes: int) -> Inputs:
    request = BUILD.request(model=str(pair.target), **sizes)
    if draft is None:
        return read_inputs(request.sizes, resolve(str(pair.target), str(pair.head)))
    return read_inputs(request.sizes, resolve_target(str(pair.target), method=METHODS[draft]))


def built(pair: Pair, platform: BuildPlatform = HERE, draft: str | None = None, **asked: Any) -> BuildPlan:
    named = {"draft": draft or str(pair.head)}
    sizes = {name: asked[name] for name in ("num_speculative_tokens", "max_seq_len") if name in asked}
    return plan_of_build(
        BUILD.request(model=str(pair.target), **named, **asked), platform, inputs_of(pair, draft, **sizes)
    )


def test_explicit_draft_count_is_fixed_and_default_adapts(pair: Pair) -> None:
    asked, left = built(pair, num_speculative_tokens=3).speculation, built(pair).speculation
    assert (asked.num_speculative_tokens, asked.adapts) == (3, False)
    assert (left.num_speculative_tokens, left.adapts) == (left.max_num_speculative_tokens, True)
    assert built(pair).drafting(2).speculation.num_speculative_tokens == 2


def test_prompt_lookup_draft_count_defaults_to_none(pair: Pair) -> None:
    assert built(pair, draft="ngram", num_speculative_tokens=12).speculation.max_num_speculative_tokens == 12
    plain = built(pair, draft="none").speculation
    assert (plain.num_speculative_tokens, plain.max_num_speculative_tokens, plain.adapts) == (0, 0, False)


def test_caches_have_room_for_the_drafts_of_two_rounds(pair: Pair) -> None:
    few, many = (built(pair, num_speculative_tokens=k, max_seq_len=64) for k in (1, 30))
    assert few.cache_length >= 64 + 2 * few.speculation.max_num_speculative_tokens
    assert many.cache_length >= 64 + 60 > few.cache_length


def test_graphs_share_a_file_unless_they_become_plans_or_leave(pair: Pair) -> None:
    here, plans = built(pair), built(pair, RTX)
    exported = plan_of_export(EXPORT.request(model=str(pair.target), draft=str(pair.head)), inputs_of(pair))
    assert [(each.shares, each.makes_plans, each.is_moved) for each in (here, plans, exported)] == [
        (True, False, False), (False, True, False), (False, False, True),
    ]  # fmt: skip


def test_steps_record_their_purpose(pair: Pair) -> None:
    stage_origin = built(pair, precision="int8").stage_origin()
    assert (stage_origin.command, stage_origin.precision, stage_origin.lowering) == ("build", "int8", "cpu")
    assert (stage_origin.model, stage_origin.drafter) == (str(pair.target), str(pair.head))


def test_an_export_has_room_for_drafts_and_leaves_their_number_to_the_build(pair: Pair) -> None:
    request = EXPORT.request(model=str(pair.target), draft=str(pair.head), num_speculative_tokens=12)
    drafts = plan_of_export(request, inputs_of(pair, num_speculative_tokens=12)).speculation
    assert (drafts.max_num_speculative_tokens, drafts.adapts) == (12, True)


def test_target_only_engine_reserves_room_for_a_drafter(pair: Pair) -> None:
    request = EXPORT.request(model=str(pair.target))
    plan = plan_of_export(request, read_target_alone(request.sizes, resolve_target(str(pair.target))))
    assert plan.speculation.max_num_speculative_tokens == 8
    assert any("exported alone" in warning for warning in plan.warnings)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("lowering", ["cpu", "tensorrt"])
def test_a_recorded_table_gives_the_recipe_that_recorded_it(name: str, lowering: str) -> None:
    recipe = RECIPES[name].on("fp16" if lowering == "tensorrt" else "fp32", LOWERINGS[lowering])
    table = recipe.record() | {MULTIPLIED: "0%"}
    assert Recipe.recorded(table, recipe.wide).record() == recipe.record()
    assert Recipe.recorded(table, recipe.wide).wide == recipe.wide


def test_named_folder_is_created(pair: Pair, tmp_path: Path) -> None:
    assert built(pair, out=tmp_path / "engine").request.out == tmp_path / "engine"
