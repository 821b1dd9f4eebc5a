"""A target is opened once: it has no taps before the drafter is read, and one skeleton for any taps."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint, read_blocks
from peagle.compiler.checkpoints.gguf.weights import GgufStack
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.checkpoints.target_and_drafter import longest_sequence
from peagle.plugins.errors import BuildError
from tests import gguf_files
from tests.models import LAYERS, Pair, make_pair


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("sparse"), "qwen3-moe")


def test_explicit_taps_are_used(sparse: Pair) -> None:
    target = Target.open(sparse.target)
    assert target.spec.taps == ()
    assert target.with_taps([1, 2]).spec.taps == (1, 2)
    assert target.with_taps().spec.taps == (2, 3, 4)
    with pytest.raises(BuildError, match=f"are invalid for a target of {LAYERS} layers"):
        target.with_taps([0, LAYERS])


def test_one_skeleton_serves_a_target_with_any_taps(sparse: Pair) -> None:
    target = Target.open(sparse.target)
    assert target.with_taps([0]).skeleton is target.with_taps([1]).skeleton
    assert target.with_taps([0]).skeleton.weights is target.skeleton.weights


def test_a_weight_is_put_together_from_the_tensors_that_it_consists_of(sparse: Pair) -> None:
    target, name = Target.open(sparse.target), "model.layers.0.mlp.experts.gate_up_proj"
    shape, stored = target.skeleton.shapes[name], load_file(sparse.target / "model.safetensors")
    values = np.concatenate([rows.reshape(-1) for rows in target.read(name, shape)]).reshape(shape)
    np.testing.assert_array_equal(values[2, 0::2], stored["model.layers.0.mlp.experts.2.gate_proj.weight"])
    assert target.stored_as(name, shape) == "model.layers.0.mlp.experts.0.gate_proj.weight"


def test_checkpoint_without_a_required_weight_is_rejected(sparse: Pair, tmp_path: Path) -> None:
    tensors = load_file(sparse.target / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((sparse.target / "config.json").read_text())
    Target.open(sparse.target).check()
    with pytest.raises(BuildError, match=r"1 missing:\s+model.norm.weight"):
        Target.open(tmp_path).check()


def with_lm_head(pair: Pair, folder: Path, moved: float) -> Target:
    """The target with a copy of its embedding as its LM head, whose last value is ``moved``."""
    shutil.copytree(pair.target, folder)
    tensors = load_file(folder / "model.safetensors")
    name = next(each for each in tensors if each.endswith("embed_tokens.weight"))
    head = tensors[name].copy()
    head[-1, -1] += moved
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors")
    return Target.open(folder)


@pytest.mark.parametrize("family", ["qwen3", "gemma-4"])
def test_a_tied_lm_head_with_other_values_is_not_tied(family: str, tmp_path: Path) -> None:
    pair = make_pair(tmp_path / "pair", family)
    assert "lm_head.weight" not in Target.open(pair.target).skeleton.shapes
    for moved in (0.0, 1.0):
        target = with_lm_head(pair, tmp_path / str(moved), moved)
        target.check()
        assert ("lm_head.weight" in target.skeleton.shapes) == bool(target.notes) == (moved > 0)
    found = np.concatenate([*target.read("lm_head.weight", target.skeleton.shapes["lm_head.weight"])])
    reference = target.family.load(target.folder, Checkpoint.open(target.folder).config)
    np.testing.assert_array_equal(found, reference.lm_head.weight.detach().numpy())
    assert not np.array_equal(found, reference.get_input_embeddings().weight.detach().numpy())
    assert target.notes[0] in longest_sequence(target, None)[1]


@pytest.mark.parametrize("family", ["qwen3-moe", "gpt-oss", "gemma-4-moe"])
def test_stacks_of_experts_have_the_blocks_of_all_experts_in_turn(family: str, tmp_path: Path) -> None:
    """Gate and up alternate; what the blocks stand for is what the graph's weight is."""
    target = Target.open(gguf_files.write(tmp_path / "tiny.gguf", family, kinds=("Q8_0",)).file)
    weights = [weight for weight in target.skeleton.weights if weight.role == "experts"]
    assert len(weights) == 4
    for weight in weights:
        stored = target.blocks(weight.name, weight.shape)
        assert stored is not None
        assert stored.kind == "Q8_0"
        rows = [gguf.dequantize(rows, gguf.GGMLQuantizationType.Q8_0) for rows in stored.read()]
        whole = [part.reshape(-1, weight.shape[-1]) for part in target.read(weight.name, weight.shape)]
        np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(whole))


def test_experts_in_several_types_have_no_blocks_in_common(tmp_path: Path) -> None:
    kinds = ("Q8_0", "Q4_0", "Q5_0", "Q4_1", "Q5_1")
    target = Target.open(gguf_files.write(tmp_path / "tiny.gguf", "qwen3-moe", kinds=kinds).file)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert target.blocks(name, target.skeleton.shapes[name]) is None


def test_blocks_are_read_in_bounded_runs(tmp_path: Path) -> None:
    """However large a stack is: no run of one of its parts has more than the limit in float32."""
    limit = 4 * 3 * 64
    target = Target.open(gguf_files.write(tmp_path / "tiny.gguf", "gpt-oss", kinds=("Q8_0",)).file)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    shape = target.skeleton.shapes[name]
    stack = target.checkpoint.tensors[name]
    assert isinstance(stack, GgufStack)
    runs = [rows for part in stack.flat[:1] for rows in read_blocks(part, limit)]
    assert {len(rows) for rows in runs} == {3}
    assert sum(map(len, runs)) == shape[0] * shape[1] // 2


def test_only_whole_blocks_of_a_file_are_blocks(sparse: Pair, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    target = Target.open(sparse.target)
    assert target.blocks(name, target.skeleton.shapes[name]) is None
    wide = Target.open(gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=("F16",)).file)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert wide.blocks(name, wide.skeleton.shapes[name]) is None
