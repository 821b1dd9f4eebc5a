"""The scales of FP8 caches come from the checkpoint or a calibration."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.hardware.machine import inspect_machine
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.precision.kv_cache_scales import cache_scales, stored_cache_scales
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.weight_source import uncalibrated
from peagle.engines.folder.manifest import Manifest
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.errors import BuildError
from tests.compiler.pipeline.quantize.test_quantize import quantized, some_scales
from tests.fixtures.commands import Run
from tests.models import LAYERS, Pair, make_pair

KEY = "model.layers.1.self_attn.k_proj.k_scale"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("wide"), "qwen3")


@pytest.fixture(scope="module")
def narrow(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its target in FP8, as `quantize --kv-cache-dtype fp8` writes it."""
    return quantized(pair.target, tmp_path_factory.mktemp("narrow") / "target", kv_cache_dtype="fp8")


def spoiled(source: Path, folder: Path, changes: Mapping[str, torch.Tensor | None]) -> Target:
    """A copy with other tensors; None leaves one out."""
    shutil.copytree(source, folder)
    (file,) = folder.glob("*.safetensors")
    tensors = {**load_file(file), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
    return Target.open(folder)


def test_calibrated_ranges_become_scales(pair: Pair) -> None:
    target = Target.open(pair.target)
    ranges = some_scales(target)
    found = cache_scales(target, ranges)
    assert found == {name: float(np.float32(value) / np.float32(448)) for name, value in ranges.caches.items()}
    assert stored_cache_scales(target) == {}


def test_checkpoint_scales_take_precedence(pair: Pair, narrow: Path) -> None:
    target, ranges = Target.open(narrow), some_scales(Target.open(pair.target))
    larger = replace(ranges, caches={name: value * 2 for name, value in ranges.caches.items()})
    found = cache_scales(target, larger)
    assert found == cache_scales(Target.open(pair.target), ranges)
    assert found == stored_cache_scales(target)


def test_missing_kv_scales_reject_the_build(pair: Pair) -> None:
    target = pair.opened()
    recipe = replace(RECIPES["bf16"], kv_cache="fp8")
    with pytest.raises(BuildError, match=f"no scale for {2 * LAYERS} of its {2 * LAYERS} tensors") as caught:
        target_component(target, recipe)
    assert "--scales" in caught.value.fix
    half = target_component(target, recipe, ranges=some_scales(target))
    assert half.caches is not None
    assert len(half.caches.scales) == 2 * LAYERS
    assert target_component(target, RECIPES["bf16"]).caches is None


def test_a_checkpoint_that_has_some_of_them_has_none(narrow: Path, tmp_path: Path) -> None:
    target = spoiled(narrow, tmp_path / "some", {KEY: None})
    assert stored_cache_scales(target) == {}
    with pytest.raises(BuildError, match="has no scale for"):
        cache_scales(target)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.tensor(0.0), "zero, negative, NaN or Inf"),
        (torch.tensor(-1.0), "zero, negative, NaN or Inf"),
        (torch.tensor(float("nan")), "zero, negative, NaN or Inf"),
        (torch.tensor(float("inf")), "zero, negative, NaN or Inf"),
        (torch.ones(2), r"k_scale has shape \[2\]"),
    ],
)
def test_invalid_scale_is_rejected(narrow: Path, tmp_path: Path, value: torch.Tensor, words: str) -> None:
    target = spoiled(narrow, tmp_path / "bad", {KEY: value})
    with pytest.raises(BuildError, match=words):
        cache_scales(target)


@pytest.mark.slow
@pytest.mark.skipif(not inspect_machine().has("tensorrt-rtx"), reason="TensorRT-RTX is not installed")
def test_engine_reports_its_cache_type(
    narrow: Path, pair: Pair, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = cli(
        "build", narrow, "--draft", pair.head, "--backend", "tensorrt-rtx", "--gpu", "sm_120", "--precision", "fp8",
        "--kv-cache-dtype", "fp8", "--max-seq-len", 64, "--max-batch-size", 2, "--out", tmp_path / "engine",
    )  # fmt: skip
    assert done.code == 0, done.err
    manifest = Manifest.read(tmp_path / "engine")
    assert {cache.dtype for cache in manifest.target.caches} == {"float8e4m3fn"}
    assert {cache.dtype for cache in manifest.drafter.caches} == {""}
    assert manifest.precision["kv_cache"] == "fp8"
    assert manifest.target.plan is not None
    assert manifest.target.plan.plugins == {"AcceptTree": 1, "CacheWriteFp8": LAYERS}


def test_only_missing_scales_are_calibrated(narrow: Path, pair: Pair) -> None:
    recipe = replace(RECIPES["fp8"], kv_cache="fp8").on("fp16")
    assert uncalibrated(Target.open(narrow), recipe, LOWERINGS["tensorrt"]) == []
    assert "the KV cache" in uncalibrated(Target.open(pair.target), recipe, LOWERINGS["tensorrt"])
