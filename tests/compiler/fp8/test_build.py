"""`--precision fp8` from a checkpoint to plans and exports: FP8 is stored, said, and proved, or nothing is built."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.compiler.builders.machine import look
from peagle.compiler.export import ExportOptions, export
from peagle.engines.manifest import Manifest
from peagle.graphs import store
from peagle.graphs.fp8 import matmuls
from peagle.plugins.errors import BuildError
from tests.compiler.conftest import Run
from tests.fp8_pairs import fp8_pair, fp8_target
from tests.models import Pair, make_pair

E4M3 = "float8e4m3fn"

needs_rtx = pytest.mark.skipif(not look().has("tensorrt-rtx"), reason="TensorRT-RTX is not installed")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("dense"), "qwen3")


@needs_rtx
@pytest.mark.parametrize("family", ["qwen3", pytest.param("qwen3-moe", marks=pytest.mark.slow)])
def test_a_modelopt_checkpoint_becomes_plans_with_fp8_weights(family: str, tmp_path: Path, cli: Run) -> None:
    pair = fp8_pair(make_pair(tmp_path / "wide", family), tmp_path / "fp8")
    done = cli(
        "build", pair.target, "--draft", pair.head, "--backend", "tensorrt-rtx", "--gpu", "sm_120",
        "--precision", "fp8", "--max-seq-len", 64, "--max-batch-size", 2, "--out", tmp_path / "engine",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "fp8: weights, activations, experts in fp8; kv cache, lm head, drafter" in done.out
    assert ("experts are stored in FP8 and multiplied in fp16" in done.err) == (family == "qwen3-moe")
    precision = Manifest.read(tmp_path / "engine").precision
    assert precision["weights"] == precision["activations"] == precision["experts"] == "fp8"
    assert precision["drafter"] == precision["kv_cache"] == precision["router"] == "fp16"
    record = json.loads((tmp_path / "engine" / "build_report.json").read_text())["precision"]["target"]
    assert record["share"] == 1
    by_weight = {each["weight"]: each for each in record["matmuls"]}
    query = by_weight["model.layers.0.self_attn.q_proj.weight"]
    assert (query["stored"], query["computed"]) == (E4M3, E4M3)
    head = by_weight.get("lm_head.weight") or by_weight["model.embed_tokens.weight"]
    assert (head["stored"], head["computed"]) == ("float16", "float16")


def test_an_export_for_tensorrt_holds_the_weights_in_fp8(dense: Pair, tmp_path: Path) -> None:
    pair = fp8_pair(dense, tmp_path / "pair")
    wide, narrow = (
        export(
            ExportOptions(
                str(pair.target), tmp_path / kind, str(pair.head), lowering="tensorrt", precision=kind, max_seq_len=64
            )
        )
        for kind in ("fp16", "fp8")
    )
    for name in ("semantic.onnx", "model.onnx"):
        found = matmuls(store.load(narrow.path / "target" / name))
        assert sum(each.stored == E4M3 for each in found) == 49
    assert {each.stored for each in matmuls(store.load(narrow.path / "drafter" / "model.onnx"))} == {"float16"}
    name = "model.layers.0.mlp.up_proj.weight"
    sizes = [store.load(r.path / "target" / "model.onnx").graph.initializers[name].const_value for r in (wide, narrow)]
    assert sizes[0].length == 2 * sizes[1].length == 2 * sizes[1].size
    assert narrow.report["bytes"]["target"] < wide.report["bytes"]["target"]
    described = json.loads((narrow.path / "export.json").read_text())
    assert described["recipe"]["weights"] == "fp8"
    assert "recipe" not in json.loads((wide.path / "export.json").read_text())


@pytest.mark.parametrize("form", ["compressed-tensors-fp8", "fp8-blocks"])
def test_other_fp8_checkpoints_export_too_and_say_what_re_scaling_cost(dense: Pair, form: str, tmp_path: Path) -> None:
    options = {"block": (16, 16)} if form == "fp8-blocks" else {"per_channel": True}
    target = fp8_target(dense.target, tmp_path / "target", form, **options)
    result = export(ExportOptions(str(target), tmp_path / "out", lowering="tensorrt", precision="fp8"))
    record = result.report["precision_of"]["target"]
    assert record["share"] == 1
    rescaled = record["rescaled"]
    assert len(rescaled) == (49 if form == "fp8-blocks" else 0)
    assert all(0 < error < 0.04 for error in rescaled.values())
    assert any("relative error" in note for note in result.report["warnings"]) == bool(rescaled)


def test_a_recipe_that_did_not_take_effect_fails_and_names_the_layers(dense: Pair, tmp_path: Path) -> None:
    chosen: Callable[[str], bool] = lambda name: int(name.split(".")[2]) < 4  # noqa: E731
    target = fp8_target(dense.target, tmp_path / "target", chosen=chosen)
    with pytest.raises(BuildError) as caught:
        export(ExportOptions(str(target), tmp_path / "out", lowering="tensorrt", precision="fp8"))
    assert caught.value.exit_code == 5
    assert "57.1% of the weights that --precision fp8 narrows are FP8" in caught.value.what
    assert "model.layers.4.self_attn.q_proj.weight: the checkpoint holds it wide" in caught.value.why
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_is_not_fp8_is_refused_before_it_is_traced(
    dense: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle.compiler.parts.trace", lambda *_: pytest.fail("it traced"))
    with pytest.raises(BuildError, match="is not an FP8 checkpoint"):
        export(ExportOptions(str(dense.target), tmp_path / "out", lowering="tensorrt", precision="fp8"))
