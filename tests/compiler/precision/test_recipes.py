"""The contents of each recipe, and the options that change it."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES, emulated, in_words, patterns, requantization_notes
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.number_formats import kernels_of
from tests.gpt_oss_blocks import write_gpt_oss

NARROW = [name for name, recipe in RECIPES.items() if recipe.quantized_type]


def test_every_recipe_is_found_by_its_name() -> None:
    assert all(recipe.name == name for name, recipe in RECIPES.items())
    assert NARROW == ["fp8", "mxfp8", "int8", "int4", "stored"]


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_unquantized_recipe_is_one_word(name: str) -> None:
    recipe = RECIPES[name].on("bf16")
    assert set(recipe.record().values()) == {name}
    assert (recipe.quantized_type, recipe.quantized_roles, recipe.share) == (None, frozenset(), 0)
    assert not recipe.is_quantized


@pytest.mark.parametrize(("wide", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
@pytest.mark.parametrize("name", NARROW)
def test_quantized_recipe_leaves_head_router_caches_and_drafter(name: str, wide: str, dtype: str) -> None:
    recipe = RECIPES[name].on(wide)
    assert recipe.dtype == dtype
    assert recipe.quantized_roles == {"attention", "mlp", "experts"}
    record = recipe.record()
    assert {record[kind] for kind in ("weights", "experts")} == {name}
    assert {record[kind] for kind in ("kv_cache", "lm_head", "router", "drafter")} == {wide}
    assert wide in recipe.says
    assert [recipe.precision(role) for role in ("mlp", "embedding", "other")] == [name, wide, wide]


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_on_a_cpu_have_their_inputs_rounded_at_run_time(name: str) -> None:
    recipe = RECIPES[name].on("fp32", LOWERINGS["ort"])
    assert recipe.record()["activations"] == "int8 at run time"
    assert RECIPES[name].on("fp16", LOWERINGS["tensorrt"]).activations == ("int8" if name == "int8" else "fp16")
    assert "at run time" in recipe.says


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_on_a_cpu_take_the_head_along(name: str) -> None:
    assert RECIPES[name].on("fp32", LOWERINGS["ort"]).lm_head == "int8"
    assert RECIPES[name].on("fp32", LOWERINGS["std"]).lm_head == "fp32"
    assert RECIPES[name].on("fp16", LOWERINGS["tensorrt"]).lm_head == "fp16"
    asked = PrecisionOptions(lm_head="fp32").of(RECIPES[name].on("fp32", LOWERINGS["ort"]))
    assert (asked.lm_head, asked.weights) == ("fp32", name)


@pytest.mark.parametrize("name", RECIPES)
def test_caches_are_in_float16_with_integer_weights_and_this_projects_kernels(name: str) -> None:
    """Caches follow the recipe by default. The record of an engine, also of an older one, restores its own caches."""
    integers = kernels_of(name) is not None
    for lowering in LOWERINGS.values():
        recipe = RECIPES[name].on("fp32", lowering)
        narrow = integers and lowering.name == "cpu"
        assert recipe.kv_cache == ("fp16" if narrow else recipe.wide)
        assert ("the KV cache is fp16" in recipe.says) == narrow
    recipe = RECIPES[name].on("fp32", LOWERINGS["cpu"])
    wide = PrecisionOptions(kv_cache="fp32").of(recipe)
    assert wide.kv_cache == wide.cache_type("drafter") == "fp32"
    for each in (recipe, wide):
        assert PrecisionOptions.recorded(each.record()).of(recipe).record() == each.record()


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_standard_onnx_integers_are_dequantized_for_matmuls(name: str) -> None:
    record, says = (recipe := RECIPES[name].on("fp32", LOWERINGS["std"])).record(), recipe.says
    assert (record["weights"], record["activations"], record["expert_activations"]) == (name, "fp32", "fp32")
    assert "computed in the wide type" in says
    assert "run time" not in says


def test_a_drafter_s_own_table_narrows_its_matrices_alone() -> None:
    table = PrecisionOptions(drafter="int4").of(RECIPES["bf16"]).of_drafter()
    assert (table.name, table.precision("drafter"), table.wide, table.share) == ("int4", "int4", "bf16", 0.9)
    assert {table.weights, table.activations, table.lm_head, table.kv_cache} == {"bf16"}
    assert RECIPES["fp8"].of_drafter().share == 0


def test_older_records_separate_exclusions_with_commas() -> None:
    assert patterns({"exclude": "layers.0.*, [lm]*.down_proj"}) == ("layers.0.*", "[lm]*.down_proj")


def test_emulation_is_reported() -> None:
    (said,) = emulated(RECIPES["fp8"].on("fp32", LOWERINGS["ort"]), LOWERINGS["ort"])
    assert said.startswith("fp8 is emulated")
    ort = LOWERINGS["ort"]
    assert emulated(RECIPES["fp8"], LOWERINGS["tensorrt"]) == emulated(RECIPES["int4"].on("fp32", ort), ort) == []
    assert len(emulated(PrecisionOptions(drafter="fp8").of(RECIPES["fp32"]), ort)) == 1


def test_as_stored_covers_the_head_and_an_embedding_of_its_own() -> None:
    recipe = RECIPES["stored"].on("fp32", LOWERINGS["cpu"])
    assert recipe.quantized_roles == {"attention", "mlp", "experts", "lm_head", "embedding"}
    assert recipe.keeps_blocks
    record = recipe.record()
    assert {record[kind] for kind in ("weights", "experts", "lm_head", "embedding")} == {"stored"}
    assert {record[kind] for kind in ("router", "drafter")} == {"fp32"}
    assert "unchanged" in recipe.says
    assert PrecisionOptions.recorded(record).of(recipe).record() == record
    assert "embedding" not in RECIPES["int4"].on("fp32", LOWERINGS["cpu"]).record(), "as before"
    assert not RECIPES["int4"].on("fp32", LOWERINGS["cpu"]).keeps_blocks


def test_matrices_of_a_gguf_file_are_described_as_stored() -> None:
    text = in_words(RECIPES["stored"].on("fp32", LOWERINGS["cpu"]).record())
    assert text.startswith("stored: weights, ")
    assert "as stored in the file" in text
    assert " in stored" not in text


@pytest.mark.parametrize(
    ("packed", "name", "notes"), [(True, "int8", 1), (True, "bf16", 0), (False, "int8", 0), (True, "stored", 0)]
)
def test_experts_stored_in_blocks_are_quantized_a_second_time_with_a_note(
    tmp_path: Path, packed: bool, name: str, notes: int
) -> None:
    checkpoint = Checkpoint.open(write_gpt_oss(tmp_path, packed=packed))
    found = requantization_notes(RECIPES[name].on("bf16"), checkpoint, ())
    assert [note.partition(",")[0] for note in found] == ["the checkpoint's experts are already MXFP4"] * notes
