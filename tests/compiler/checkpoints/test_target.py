"""A target is opened once: no taps before a drafter was read, and one skeleton however it is tapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from peagle.compiler.checkpoints.target import Target
from peagle.plugins.errors import BuildError
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
