"""FP8 checkpoints in an FP8 graph: codes as stored, scales per row, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file, save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.formats.fp8_with_scales import Loss
from peagle.compiler.checkpoints.formats.stored_numbers import as_numbers
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.precision.recipes import RECIPES, widened
from peagle.compiler.precision.weights_stored_quantized import StoredFp8, fewest
from peagle.compiler.request.expert_lowering import lowering_with_experts
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.quantization import Rounding
from peagle.plugins.errors import BuildError
from tests.fp8_pairs import fp8_target
from tests.models import Pair, make_pair

NAME = "model.layers.1.mlp.up_proj.weight"
STACKED = "model.layers.1.mlp.experts.gate_up_proj"
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "modelopt": ("modelopt-fp8", {}),
    "tensor": ("compressed-tensors-fp8", {}),
    "channel": ("compressed-tensors-fp8", {"per_channel": True}),
    "blocks": ("fp8-blocks", {"block": (16, 16)}),
    "compressed blocks": ("compressed-tensors-fp8", {"block": (16, 16)}),
    "rows of blocks": ("fp8-blocks", {"block": (16, 128)}),
}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("dense"), "qwen3")


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("sparse"), "qwen3-moe")


def weights_of(folder: Path, lowering: str = "tensorrt", experts: str | None = None) -> StoredFp8:
    half = target_component(Target.open(folder), RECIPES["fp8"], lowering_with_experts(LOWERINGS[lowering], experts))
    assert isinstance(half.quantized, StoredFp8)
    return half.quantized


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
    assert tensor.rescaled() == (form in ("blocks", "compressed blocks"))
    if tensor.rescaled():
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
    taken, wide = fp8.storage()
    assert wide == {}
    shapes = fp8.target.skeleton.shapes
    for weight in ("gate_up_proj", "down_proj"):
        graph_name = f"model.layers.0.mlp.experts.{weight}"
        shape = shapes[graph_name]
        codes = np.concatenate([rows.reshape(-1) for rows in fp8.codes(graph_name, shape)]).reshape(shape)
        (scale,) = fp8.scales(graph_name, shape)
        assert scale.shape == taken[graph_name].scale
        found = codes.astype(np.float32) * scale.reshape(*scale.shape, *[1] * (3 - scale.ndim))
        pieces = fp8.target.read(graph_name, shape)
        np.testing.assert_array_equal(found.reshape(-1), np.concatenate([rows.reshape(-1) for rows in pieces]))
        assert taken[graph_name].input == Rounding("float8_e4m3fn", float(np.float32(0.009)))
        assert len(taken[graph_name].scale) == 2


@pytest.mark.parametrize("form", ["modelopt", "channel", "blocks"])
def test_for_tensorrt_s_own_layer_each_matrix_of_experts_has_one_scale(sparse: Pair, form: str, tmp_path: Path) -> None:
    """Codes stay as stored if possible; otherwise they are requantized, and the error is reported."""
    name, options = FORMS[form]
    fp8 = weights_of(fp8_target(sparse.target, tmp_path / "t", name, **options), "tensorrt-sm100")
    for weight, halves in (("gate_up_proj", 2), ("down_proj", 1)):
        graph_name = f"model.layers.0.mlp.experts.{weight}"
        shape = fp8.target.skeleton.shapes[graph_name]
        (scale,) = fp8.scales(graph_name, shape)
        assert scale.shape == (shape[:2] if halves > 1 else shape[:1]), "gate and up have their own"
        of_halves = scale.reshape(shape[0], -1, halves)
        np.testing.assert_array_equal(of_halves, np.broadcast_to(of_halves[:, :1], of_halves.shape))
        codes = np.concatenate([rows.reshape(-1) for rows in fp8.codes(graph_name, shape)]).reshape(shape)
        found = codes.astype(np.float32) * scale.reshape(*scale.shape, *[1] * (3 - scale.ndim))
        wanted = np.concatenate([rows.reshape(-1) for rows in fp8.target.read(graph_name, shape)]).reshape(shape)
        if form == "modelopt":
            np.testing.assert_array_equal(found, wanted)
        assert np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)
    assert bool(fp8.losses) == (form != "modelopt")
    assert any("one scale per row or per tensor" in note for note in fp8.notes()) == (form != "modelopt")


@pytest.mark.parametrize("form", ["modelopt", "blocks"])
def test_all_experts_of_a_layer_can_share_a_scale(sparse: Pair, form: str, tmp_path: Path) -> None:
    """The largest of theirs. Codes are rounded again, and the notes tell."""
    name, options = FORMS[form]
    folder = fp8_target(sparse.target, tmp_path / "t", name, **options)
    each, shared = (weights_of(folder, "tensorrt-sm100", experts) for experts in ("layer", "layer-one-scale"))
    assert each.key != shared.key
    for weight in ("gate_up_proj", "down_proj"):
        graph_name = f"model.layers.0.mlp.experts.{weight}"
        shape = shared.target.skeleton.shapes[graph_name]
        (scale,), (scales,) = shared.scales(graph_name, shape), each.scales(graph_name, shape)
        assert scale.shape == shared.storage()[0][graph_name].scale == ()
        assert scale == scales.max()
        codes = np.concatenate([rows.reshape(-1) for rows in shared.codes(graph_name, shape)])
        wanted = np.concatenate([rows.reshape(-1) for rows in shared.target.read(graph_name, shape)])
        assert np.linalg.norm(codes.astype(np.float32) * scale - wanted) < 0.05 * np.linalg.norm(wanted)
    assert any("one scale per row or per tensor" in note for note in shared.notes())


def test_unquantized_parts_of_a_checkpoint_are_kept_and_named(sparse: Pair, tmp_path: Path) -> None:
    left = ("layers.2.self_attn.q_proj", "layers.4.mlp.experts.3.up_proj")
    chosen: Callable[[str], bool] = lambda name: not any(part in name for part in left)  # noqa: E731
    taken, wide = weights_of(fp8_target(sparse.target, tmp_path / "t", chosen=chosen)).storage()
    assert wide == {
        "model.layers.2.self_attn.q_proj.weight": "the checkpoint stores it unquantized",
        "model.layers.4.mlp.experts.gate_up_proj": "the checkpoint stores 1 of its 12 tensors unquantized",
    }
    assert not wide.keys() & taken.keys()


def test_unquantized_checkpoint_without_ranges_is_rejected(dense: Pair) -> None:
    error = refusal(dense.target)
    assert "no calibrated range for the input of 49 weights" in error.what


@pytest.mark.parametrize("form", ["blocks", "channel"])
def test_inputs_scaled_at_run_time_are_refused_by_name(dense: Pair, form: str, tmp_path: Path) -> None:
    name, options = FORMS[form]
    error = refusal(fp8_target(dense.target, tmp_path / "t", name, static=False, **options))
    assert "no input scale for 49 FP8 weights" in error.what
    assert "model.layers.0.self_attn.q_proj.weight" in error.what
    assert "quantize" in error.fix


def test_dequantizing_fp8_is_reported(dense: Pair, tmp_path: Path) -> None:
    narrow, plain = Checkpoint.open(fp8_target(dense.target, tmp_path / "t")), Checkpoint.open(dense.target)
    (said,) = widened(RECIPES["fp16"], narrow)
    assert said.startswith("49 tensors stored in FP8 were dequantized to fp16")
    assert widened(RECIPES["fp8"], narrow) == widened(RECIPES["fp16"], plain) == []


BAD: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "zero": lambda scale: scale.index_fill(0, torch.tensor([0]), 0.0),
    "negative": lambda scale: scale.index_fill(0, torch.tensor([0]), -1.0),
    "nan": lambda scale: scale.index_fill(0, torch.tensor([0]), float("nan")),
    "inf": lambda scale: scale.index_fill(0, torch.tensor([0]), float("inf")),
    "missing": lambda _: None,
    "shape": lambda scale: torch.cat([scale, scale, scale]),
    "dtype": lambda scale: scale.to(torch.int64),
    "overflowing": lambda scale: scale.index_fill(0, torch.tensor([0]), 3e38),
    "vanishing": lambda scale: scale.index_fill(0, torch.tensor([0]), 1e-45),
}
UNUSABLE = ("overflowing", "vanishing")
QUICK = ("nan", "missing", "shape")  # of every form; the other numbers are slow in all forms but one


@pytest.fixture(scope="module")
def stored_as(dense: Pair, stacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(form: str) -> Path:
        if form == "stacked":
            return stacked
        name, options = FORMS[form]
        return fp8_target(dense.target, tmp_path_factory.mktemp(form) / "t", name, **options)

    return make


@pytest.mark.parametrize(
    ("form", "kind", "bad"),
    [
        pytest.param(form, kind, bad, marks=[] if form == "modelopt" or bad in QUICK else pytest.mark.slow)
        for form in ("modelopt", "tensor", "channel", "blocks", "stacked")
        for kind in ("weight", "input")
        for bad in BAD
    ],
)
def test_impossible_scales_are_refused_by_name(
    stored_as: Callable[[str], Path], form: str, kind: str, bad: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(stored_as(form), tmp_path / "t"))
    if form == "stacked":
        weight, key = STACKED, f"{STACKED}_{kind}_scale"
    else:
        of_input = "activation_scale" if form == "blocks" else "input_scale"
        of_weight = "weight_scale_inv" if form == "blocks" else "weight_scale"
        weight, key = NAME, f"{NAME.removesuffix('.weight')}.{of_weight if kind == 'weight' else of_input}"
    tensors = load_file(folder / "model.safetensors")
    scale = tensors.pop(key)
    broken = BAD[bad](scale.reshape(-1) if scale.ndim < 2 else scale)
    if broken is not None:
        tensors[key] = broken if bad == "shape" or scale.ndim else broken.reshape(())
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BuildError) as caught:
        weights_of(folder).storage()
    named = weight if bad == "missing" and kind == "input" else key  # without it, the weight names the input
    assert (weight if bad in UNUSABLE else named) in str(caught.value)


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacked")
    return fp8_target(make_pair(folder / "wide", "gpt-oss").target, folder / "fp8")


def test_experts_of_one_tensor_are_one_weight_with_one_scale(stacked: Path) -> None:
    """As ModelOpt writes those of GPT-OSS, [E, in, out]; the graph has them turned."""
    fp8 = weights_of(stacked)
    taken, wide = fp8.storage()
    assert wide == {}
    stored = load_file(stacked / "model.safetensors")
    shape = fp8.target.skeleton.shapes[STACKED]
    codes = np.concatenate([rows.reshape(-1) for rows in fp8.codes(STACKED, shape)]).reshape(shape)
    np.testing.assert_array_equal(codes.view(np.uint8), stored[STACKED].mT.contiguous().view(torch.uint8).numpy())
    (scale,) = fp8.scales(STACKED, shape)
    assert (scale.shape, float(scale)) == ((), float(stored[f"{STACKED}_weight_scale"]))
    assert taken[STACKED].input == Rounding("float8_e4m3fn", float(np.float32(0.009)))
    wanted = stored[STACKED].float() * stored[f"{STACKED}_weight_scale"]
    np.testing.assert_array_equal(fp8.target.checkpoint.read(STACKED), wanted.numpy())


def test_codes_that_are_nan_are_refused(dense: Pair, tmp_path: Path) -> None:
    folder = fp8_target(dense.target, tmp_path / "t")
    tensors = load_file(folder / "model.safetensors")
    tensors[NAME].view(torch.uint8)[3, 5] = 0x7F
    save_file(tensors, folder / "model.safetensors")
    fp8 = weights_of(folder)
    with pytest.raises(BuildError, match=r"up_proj.weight has 1 NaN"):
        list(fp8.codes(NAME, fp8.target.skeleton.shapes[NAME]))


@settings(max_examples=50, deadline=None)
@given(
    scale=arrays.arrays(
        np.float32, st.sampled_from([(), (3,), (3, 4)]), elements=st.sampled_from([0.25, 0.5, 1.0, 2.0])
    )
)
def test_equal_scales_are_merged(scale: np.ndarray) -> None:
    kept = fewest(scale)
    assert kept.ndim <= scale.ndim
    spread = kept.reshape(kept.shape + (1,) * (scale.ndim - kept.ndim))
    np.testing.assert_array_equal(np.broadcast_to(spread, scale.shape), scale)
    assert kept.ndim == 0 or not np.all(kept == kept[..., :1])
