"""`--precision fp8` from a checkpoint to plans and exports: FP8 is stored, reported and proved, or the build fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.hardware.machine import inspect_machine
from peagle.compiler.pipeline.export import export
from peagle.compiler.request.verb_options import EXPORT
from peagle.compiler.verbs.export import _summary
from peagle.engines.folder.manifest import Manifest
from peagle.graphs import graph_files
from peagle.graphs.quantization import products_of
from peagle.plugins.errors import BuildError
from peagle.plugins.number_formats import INT8, NUMBER_FORMATS, Scheme, TensorRTSupport
from tests.fixtures.commands import Run
from tests.fp8_pairs import fp8_pair, fp8_target
from tests.models import LAYERS, SHALLOW, Pair, make_pair, make_shallow_pair

pytestmark = pytest.mark.begins_first

E4M3 = "float8e4m3fn"

needs_rtx = pytest.mark.skipif(not inspect_machine().has("tensorrt-rtx"), reason="TensorRT-RTX is not installed")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("dense"), "qwen3")


@needs_rtx
@pytest.mark.parametrize(
    "family", ["qwen3", *(pytest.param(n, marks=pytest.mark.slow) for n in ("qwen3-moe", "gpt-oss"))]
)
def test_a_modelopt_checkpoint_becomes_plans_with_fp8_weights(family: str, tmp_path: Path, cli: Run) -> None:
    pair = fp8_pair(make_shallow_pair(tmp_path / "wide", family), tmp_path / "fp8")
    done = cli(
        "build", pair.target, "--draft", pair.head, "--backend", "tensorrt-rtx", "--gpu", "sm_120",
        "--precision", "fp8", "--max-seq-len", 64, "--max-batch-size", 1, "--out", tmp_path / "engine",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "fp8: weights, activations, experts, expert activations in fp8; kv cache, lm head, drafter" in done.out
    assert "computed in fp16" not in done.err
    precision = Manifest.read(tmp_path / "engine").precision
    assert precision["weights"] == precision["activations"] == precision["experts"] == "fp8"
    assert precision["drafter"] == precision["kv_cache"] == precision["router"] == "fp16"
    record = json.loads((tmp_path / "engine" / "build_report.json").read_text())["precision"]["target"]
    assert record["share"] == 1
    by_weight = {name: each for each in record["matmuls"] for name in each["weight"].split("+")}
    query = by_weight["model.layers.0.self_attn.q_proj.weight"]
    assert (query["stored"], query["computed"]) == (E4M3, E4M3)
    _check_products(tmp_path / "engine", done.out, cli)
    experts = [(each["stored"], each["computed"]) for name, each in by_weight.items() if ".experts." in name]
    assert set(experts) <= {(E4M3, E4M3)}
    assert len(experts) == 2 * {"qwen3": 0, "qwen3-moe": LAYERS - 1, "gpt-oss": SHALLOW["num_hidden_layers"]}[family]
    head = by_weight.get("lm_head.weight") or by_weight["model.embed_tokens.weight"]
    assert (head["stored"], head["computed"]) == ("float16", "float16")


def _check_products(engine: Path, said: str, cli: Run) -> None:
    """TensorRT's own account of every product stands in the report, in the summary and in ``inspect``."""
    table = json.loads((engine / "build_report.json").read_text())["matmuls"]["target"]
    assert {row["by"] for row in table["list"]} == {"plan"}
    narrow = {name: row for row in table["list"] if row["stored"] == E4M3 for name in row["weight"].split("+")}
    query = narrow["model.layers.0.self_attn.q_proj.weight"]
    assert (query["computed"], query["unpacked"], query["role"]) == (E4M3, False, "attention")
    assert query["graph"] == {"stored": E4M3, "computed": E4M3}
    line = f"{table['total']}: "
    assert line in said
    assert line in cli("inspect", engine).out
    assert json.loads(cli("inspect", engine, "--json").out)["matmuls"]["target"] == table
    assert "model.layers.0.self_attn.q_proj.weight" in (engine / "build_report.html").read_text()


@needs_rtx
@pytest.mark.slow
def test_a_recipe_that_tensorrt_does_not_carry_out_fails_and_names_the_weights(
    dense: Pair, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    widened = replace(INT8, tensorrt=TensorRTSupport(Scheme("int8", block=16)))  # by TensorRT, whatever the recipe says
    monkeypatch.setitem(NUMBER_FORMATS, INT8.name, widened)
    done = cli(
        "build", dense.target, "--draft", dense.head, "--backend", "tensorrt-rtx", "--gpu", "sm_120",
        "--precision", "int8", "--max-seq-len", 64, "--max-batch-size", 2, "--out", tmp_path / "engine",
    )  # fmt: skip
    assert done.code == 5
    assert "0.0% of the weights that --precision int8 quantizes are INT8 in the target plan" in done.err
    names = "+".join(f"model.layers.0.self_attn.{kind}_proj.weight" for kind in "qkv")
    assert f"{names}: TensorRT dequantizes the weight to memory in float16 before every matmul" in done.err
    assert not (tmp_path / "engine").exists()


def test_tensorrt_export_stores_fp8_weights(dense: Pair, tmp_path: Path) -> None:
    pair = fp8_pair(dense, tmp_path / "pair")
    wide, narrow = (
        export(
            EXPORT.request(
                model=str(pair.target),
                out=tmp_path / kind,
                draft=str(pair.head),
                lowering="tensorrt",
                precision=kind,
                max_seq_len=64,
            )
        )
        for kind in ("fp16", "fp8")
    )
    for name, count in (("semantic.onnx", 49), ("model.onnx", 4 * LAYERS)):  # one of q, k, v and one of gate, up
        found = products_of(graph_files.load(narrow.path / "target" / name))
        assert sum(each.stored == E4M3 for each in found) == count
    assert {each.stored for each in products_of(graph_files.load(narrow.path / "drafter" / "model.onnx"))} == {
        "float16"
    }
    name = "model.layers.0.mlp.down_proj.weight"
    sizes = [
        graph_files.load(r.path / "target" / "model.onnx").graph.initializers[name].const_value for r in (wide, narrow)
    ]
    assert sizes[0].length == 2 * sizes[1].length == 2 * sizes[1].size
    assert narrow.report["bytes"]["target"] < wide.report["bytes"]["target"]
    described = json.loads((narrow.path / "export.json").read_text())
    assert described["recipe"]["weights"] == "fp8"
    assert "recipe" not in json.loads((wide.path / "export.json").read_text())
    said = _summary(narrow)
    assert "fp8: weights, activations, experts, expert activations in fp8; kv cache, lm head" in said
    assert re.search(r"^target matmuls +29: 28 fp8 \(\d", said, re.M)
    assert re.search(r"^precision +fp16$", _summary(wide), re.M)


@pytest.mark.parametrize("form", ["compressed-tensors-fp8", "fp8-blocks"])
def test_other_fp8_checkpoints_export_with_reported_rescaling_cost(dense: Pair, form: str, tmp_path: Path) -> None:
    options = {"block": (16, 16)} if form == "fp8-blocks" else {"per_channel": True}
    target = fp8_target(dense.target, tmp_path / "target", form, **options)
    result = export(EXPORT.request(model=str(target), out=tmp_path / "out", lowering="tensorrt", precision="fp8"))
    record = result.report["precision"]["target"]
    assert record["share"] == 1
    rescaled = record["losses"]
    assert len(rescaled) == (49 if form == "fp8-blocks" else 0)
    assert all(0 < error < 0.04 for error in rescaled.values())
    assert any("relative error" in note for note in result.report["warnings"]) == bool(rescaled)


def test_a_recipe_that_did_not_take_effect_fails_and_names_the_layers(dense: Pair, tmp_path: Path) -> None:
    chosen: Callable[[str], bool] = lambda name: int(name.split(".")[2]) < 4  # noqa: E731
    target = fp8_target(dense.target, tmp_path / "target", chosen=chosen)
    with pytest.raises(BuildError) as caught:
        export(EXPORT.request(model=str(target), out=tmp_path / "out", lowering="tensorrt", precision="fp8"))
    assert caught.value.exit_code == 5
    assert "57.1% of the weights that --precision fp8 should quantize are FP8" in caught.value.what
    assert "model.layers.4.self_attn.q_proj.weight: the checkpoint stores it unquantized" in caught.value.why
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("checkpoint", ["wide", "dynamic"])
def test_checkpoint_without_input_scales_is_calibrated_first(dense: Pair, checkpoint: str, tmp_path: Path) -> None:
    """From a wide checkpoint, and from one in FP8 whose inputs are meant to be scaled at run time."""
    target = dense.target
    if checkpoint == "dynamic":
        target = fp8_target(dense.target, tmp_path / "target", "compressed-tensors-fp8", static=False, per_channel=True)
    asked = EXPORT.request(
        model=str(target), out=tmp_path / "out", lowering="tensorrt", precision="fp8", calib_samples=6, calib_length=64
    )
    result = export(asked)
    phases = [phase["phase"] for phase in result.report["phases"]]
    assert phases.index("calibrate") == phases.index("trace target") - 1
    assert (result.report["calibration"]["num_samples"], result.report["calibration"]["num_tokens"]) == (6, 6 * 64)
    record = result.report["precision"]["target"]
    assert record["share"] == 1
    query = next(each for each in record["matmuls"] if "layers.0.self_attn.q_proj" in each["weight"])
    assert (query["stored"], query["computed"]) == (E4M3, E4M3)
    assert bool(record["losses"]) == (checkpoint == "wide"), "stored codes are taken as they are"
    described = json.loads((tmp_path / "out" / "export.json").read_text())
    assert described["recipe"]["activations"] == "fp8"
