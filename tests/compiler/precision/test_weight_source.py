"""The source of quantized weights: the checkpoint's codes or a rounding of unquantized weights, never both."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.precision.on_the_fly_quantizer import OnTheFlyQuantizer
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES, Recipe
from peagle.compiler.precision.weight_source import (
    is_whole_fp8,
    kept_blocks,
    of_drafter,
    of_target,
    requantized,
    uncalibrated,
)
from peagle.compiler.precision.weights_stored_quantized import StoredFp8
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.errors import BuildError
from tests import gguf_files
from tests.fp8_pairs import fp8_target
from tests.models import Pair, make_pair


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("dense"), "qwen3")


@pytest.fixture(scope="module")
def static(dense: Pair, tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.open(fp8_target(dense.target, tmp_path_factory.mktemp("static") / "t"))


@pytest.fixture(scope="module")
def dynamic(dense: Pair, tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("dynamic") / "t"
    return Target.open(fp8_target(dense.target, folder, "compressed-tensors-fp8", static=False))


def recipe(name: str, **overrides: str) -> Recipe:
    return PrecisionOptions(**overrides).of(RECIPES[name].on("bf16", LOWERINGS["tensorrt"]))


def test_fp8_checkpoint_weights_are_used_unchanged(static: Target, dynamic: Target) -> None:
    assert isinstance(of_target(static, recipe("fp8"), LOWERINGS["tensorrt"]), StoredFp8)
    assert uncalibrated(static, recipe("fp8"), LOWERINGS["tensorrt"]) == []
    assert len(uncalibrated(dynamic, recipe("fp8"), LOWERINGS["tensorrt"])) == 49


def test_unquantized_checkpoint_is_rounded(dense: Pair) -> None:
    wide = Target.open(dense.target)
    assert isinstance(of_target(wide, recipe("fp8"), LOWERINGS["tensorrt"]), OnTheFlyQuantizer)
    assert of_target(wide, recipe("bf16"), LOWERINGS["tensorrt"]) is None
    for name, lowering, count in [
        ("fp8", "tensorrt", 49), ("fp8", "ort", 49), ("int8", "tensorrt", 49), ("int8", "ort", 0),
        ("int4", "tensorrt", 0), ("mxfp8", "tensorrt", 0),
    ]:  # fmt: skip
        assert len(uncalibrated(wide, recipe(name), LOWERINGS[lowering])) == count, (name, lowering)


def test_quantized_cache_scales_are_measured(static: Target, dense: Pair) -> None:
    assert uncalibrated(static, recipe("fp8", kv_cache="fp8"), LOWERINGS["tensorrt"]) == ["the KV cache"]
    assert uncalibrated(Target.open(dense.target), recipe("bf16", kv_cache="fp8"), LOWERINGS["tensorrt"]) == [
        "the KV cache"
    ]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("int8", {}), ("int4", {}), ("mxfp8", {}), ("fp8", {"lm_head": "int8"})],
)
def test_nothing_is_quantized_twice(static: Target, name: str, overrides: dict[str, str]) -> None:
    with pytest.raises(BuildError, match="is already quantized: it stores 49 tensors in FP8") as caught:
        of_target(static, recipe(name, **overrides), LOWERINGS["tensorrt"])
    assert "--precision fp8" in caught.value.fix


def test_unquantized_head_of_an_fp8_checkpoint_can_be_rounded(static: Target) -> None:
    narrow = of_target(static, recipe("bf16", lm_head="int4"), LOWERINGS["tensorrt"])
    assert isinstance(narrow, OnTheFlyQuantizer)
    assert set(narrow.selection.weights) == {"lm_head.weight"}


def test_only_a_fully_fp8_checkpoint_counts_as_fp8(
    static: Target, dynamic: Target, dense: Pair, tmp_path: Path
) -> None:
    half = fp8_target(dense.target, tmp_path / "half", chosen=lambda name: int(name.split(".")[2]) < 4)
    assert is_whole_fp8(static, LOWERINGS["tensorrt"])
    for other in (dynamic, Target.open(dense.target), Target.open(half)):
        assert not is_whole_fp8(other, LOWERINGS["tensorrt"])


def test_drafter_matrices_are_weight_only_quantized(dense: Pair) -> None:
    _, head = dense.specs()
    assert of_drafter(head, recipe("fp8"), LOWERINGS["tensorrt"], lambda *_: iter(())) is None
    narrow = of_drafter(head, recipe("bf16", drafter="int8"), LOWERINGS["tensorrt"], lambda *_: iter(()))
    assert narrow is not None
    assert "layers.0.mlp.up_proj.weight" in narrow.selection.weights
    assert not {"lm_head.weight", "embed_tokens.weight"} & set(narrow.selection.weights)
    narrow.check()
    taken, wide = narrow.storage()
    assert {weight.codes for weight in taken.values()} == {"int8"}
    assert all(weight.input is None for weight in taken.values())
    assert wide == {}


def test_as_stored_rounds_nothing(tmp_path: Path) -> None:
    """Every weight is in the scheme of its own blocks; what has none is not selected."""
    kinds = ("Q8_0", "Q4_0", "F16", "Q4_1")
    target = Target.open(gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=kinds).file)
    cpu = LOWERINGS["cpu"]
    table = RECIPES["stored"].on("fp32", cpu)
    source = of_target(target, table, cpu)
    assert isinstance(source, OnTheFlyQuantizer)
    stored = {name: tensor.entry.dtype for name, tensor in target.checkpoint.tensors.items() if tensor.shape[1:]}
    blocks = {name: kind for name, kind in stored.items() if kind != "F16"}
    assert kept_blocks(target, table, cpu) == source.kept() == blocks
    taken, wide = source.storage()
    assert {name: weight.packed.upper() for name, weight in taken.items()} == blocks
    assert [name for name, weight in taken.items() if weight.gathered] == [
        name for name in blocks if name == "model.embed_tokens.weight"
    ] + [name for name in blocks if name == "lm_head.weight"]
    assert (wide, source.rounds(), source.notes(), source.unweighted()) == ({}, [], [], [])
    assert requantized(target, table, cpu) == ()
    assert requantized(target, RECIPES["int4"].on("fp32", cpu), cpu) == ("Q4_0", "Q4_1", "Q8_0")[2:]
    excluded = PrecisionOptions(exclude=("layers.0.*",)).of(table)
    assert kept_blocks(target, excluded, cpu) == blocks
    assert requantized(target, excluded, cpu) == ()
    assert kept_blocks(target, RECIPES["fp32"].on("fp32", cpu), cpu) == {}


def test_stacks_of_experts_are_taken_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gate and up of a layer are in different types, its down stack is not taken either."""
    monkeypatch.setattr("peagle.compiler.precision.weight_source.may_keep_blocks", lambda *_: True)
    cpu, names = LOWERINGS["cpu"], ("Q8_0", "Q4_0", "Q4_1")
    table = RECIPES["stored"].on("fp32", cpu)
    same = Target.open(gguf_files.write(tmp_path / "same.gguf", "qwen3-moe", kinds=("Q8_0",)).file)
    found = kept_blocks(same, table, cpu)
    assert {name for name in found if ".experts." in name} == {
        f"model.layers.{layer}.mlp.experts.{stack}" for layer in (0, 1) for stack in ("gate_up_proj", "down_proj")
    }
    mixed = Target.open(gguf_files.write(tmp_path / "mixed.gguf", "qwen3-moe", kinds=names).file)
    left = kept_blocks(mixed, table, cpu)
    assert not [name for name in left if ".experts." in name]
    assert left
