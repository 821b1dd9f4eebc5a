"""FP8 checkpoints as an FP8 graph takes them: codes as stored, scales by row, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle.compiler.checkpoint import Checkpoint
from peagle.compiler.formats.numbers import as_numbers
from peagle.compiler.formats.scaled import Loss
from peagle.compiler.fp8 import Fp8Weights
from peagle.compiler.parts import target_half
from peagle.compiler.recipes import RECIPES, widened
from peagle.graphs.families import family_for
from peagle.graphs.skeleton import weight_shapes
from peagle.plugins.errors import BuildError
from tests.fp8_pairs import fp8_target
from tests.models import Pair, make_pair

NAME = "model.layers.1.mlp.up_proj.weight"
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "modelopt": ("modelopt-fp8", {}),
    "tensor": ("compressed-tensors-fp8", {}),
    "channel": ("compressed-tensors-fp8", {"per_channel": True}),
    "blocks": ("fp8-blocks", {"block": (16, 16)}),
    "rows of blocks": ("fp8-blocks", {"block": (16, 128)}),
}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("dense"), "qwen3")


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("sparse"), "qwen3-moe")


def weights_of(folder: Path) -> Fp8Weights:
    checkpoint = Checkpoint.open(folder)
    half = target_half(checkpoint, family_for(checkpoint.config).describe(checkpoint.config), RECIPES["fp8"])
    assert half.fp8 is not None
    return half.fp8


def refusal(folder: Path) -> BuildError:
    with pytest.raises(BuildError) as caught:
        weights_of(folder)
    return caught.value


@pytest.mark.parametrize("form", FORMS)
def test_codes_times_row_scales_are_the_weight(dense: Pair, form: str, tmp_path: Path) -> None:
    name, options = FORMS[form]
    checkpoint = Checkpoint.open(fp8_target(dense.target, tmp_path / "t", name, **options))
    tensor, values, loss = checkpoint.fp8(NAME), checkpoint.read(NAME), Loss()
    assert tensor is not None
    codes = np.concatenate(list(checkpoint.codes(NAME, loss, limit=4096)))
    scales = tensor.row_scales()
    assert scales.shape in ((), values.shape[:1])
    found = as_numbers("F8_E4M3", codes) * scales.reshape(-1, 1)
    assert tensor.rescaled == (form == "blocks")
    if form == "blocks":
        error = np.linalg.norm(found - values) / np.linalg.norm(values)
        assert 0.001 < error < 0.04
        assert loss.relative == pytest.approx(error, rel=1e-3)
    else:
        np.testing.assert_array_equal(found, values)
        assert loss.relative == 0
    assert tensor.input_scale() == pytest.approx(0.009)


@pytest.mark.parametrize("form", ["modelopt", "channel"])
def test_experts_keep_a_scale_for_each_of_their_rows(sparse: Pair, form: str, tmp_path: Path) -> None:
    name, options = FORMS[form]
    fp8 = weights_of(fp8_target(sparse.target, tmp_path / "t", name, **options))
    taken, wide = fp8.weights()
    assert wide == {}
    shapes = weight_shapes(fp8.checkpoint.config)
    for weight in ("gate_up_proj", "down_proj"):
        graph_name = f"model.layers.0.mlp.experts.{weight}"
        shape = shapes[graph_name]
        codes = np.concatenate([rows.reshape(-1) for rows in fp8.codes(graph_name, shape)]).reshape(shape)
        scale = taken[graph_name].scale
        found = codes.astype(np.float32) * scale.reshape(*scale.shape, *[1] * (3 - scale.ndim))
        pieces = fp8.sources.read(graph_name, shape, fp8.checkpoint.pieces)
        np.testing.assert_array_equal(found.reshape(-1), np.concatenate([rows.reshape(-1) for rows in pieces]))
        assert taken[graph_name].input_scale is None


def test_what_the_checkpoint_holds_wide_stays_wide_and_is_named(sparse: Pair, tmp_path: Path) -> None:
    left = ("layers.2.self_attn.q_proj", "layers.4.mlp.experts.3.up_proj")
    chosen: Callable[[str], bool] = lambda name: not any(part in name for part in left)  # noqa: E731
    taken, wide = weights_of(fp8_target(sparse.target, tmp_path / "t", chosen=chosen)).weights()
    assert wide == {
        "model.layers.2.self_attn.q_proj.weight": "the checkpoint holds it wide",
        "model.layers.4.mlp.experts.gate_up_proj": "the checkpoint holds 1 of its 12 tensors wide",
    }
    assert not wide.keys() & taken.keys()


def test_a_wide_checkpoint_is_refused_with_the_way_out(dense: Pair) -> None:
    error = refusal(dense.target)
    assert "is not an FP8 checkpoint" in error.what
    assert "quantize" in error.fix


@pytest.mark.parametrize("form", ["blocks", "channel"])
def test_inputs_scaled_at_run_time_are_refused_by_name(dense: Pair, form: str, tmp_path: Path) -> None:
    name, options = FORMS[form]
    error = refusal(fp8_target(dense.target, tmp_path / "t", name, static=False, **options))
    assert "no scale for the input of 49 FP8 weights" in error.what
    assert "model.layers.0.self_attn.q_proj.weight" in error.what
    assert "quantize" in error.fix


def test_widening_fp8_is_said(dense: Pair, tmp_path: Path) -> None:
    narrow, plain = Checkpoint.open(fp8_target(dense.target, tmp_path / "t")), Checkpoint.open(dense.target)
    (said,) = widened(RECIPES["fp16"], narrow)
    assert said.startswith("49 tensors that the checkpoint stores in FP8 were widened to fp16")
    assert widened(RECIPES["fp8"], narrow) == widened(RECIPES["fp16"], plain) == []


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), [0.1, 0.2]])
@pytest.mark.parametrize("kind", ["input_scale", "weight_scale"])
def test_impossible_scales_are_refused(dense: Pair, kind: str, value: Any, tmp_path: Path) -> None:
    folder = fp8_target(dense.target, tmp_path / "t")
    tensors = load_file(folder / "model.safetensors")
    key = f"{NAME.removesuffix('.weight')}.{kind}"
    tensors[key] = torch.tensor(value)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BuildError, match=key):
        weights_of(folder).weights()


def test_codes_that_are_nan_are_refused(dense: Pair, tmp_path: Path) -> None:
    folder = fp8_target(dense.target, tmp_path / "t")
    tensors = load_file(folder / "model.safetensors")
    tensors[NAME].view(torch.uint8)[3, 5] = 0x7F
    save_file(tensors, folder / "model.safetensors")
    fp8 = weights_of(folder)
    with pytest.raises(BuildError, match=r"up_proj.weight holds 1 NaN"):
        list(fp8.codes(NAME, weight_shapes(fp8.checkpoint.config)[NAME]))
