"""GPT-OSS on TensorRT: routed experts keep their MXFP4 blocks, and only experts with tokens are computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import synthetic_checkpoint as synthetic
from onnx.external_data_helper import load_external_data_for_model
from safetensors.numpy import load_file, save_file

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.pipeline.graph_stages import Compiled
from peagle.compiler.precision.decide_recipe import stored_experts
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.store.stages import StageStore
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.errors import BuildError
from tests import gguf_files
from tests.fixtures.commands import Run
from tests.gpt_oss_blocks import STACKS, write_gpt_oss
from tests.graphs.running import Graph, target_inputs
from tests.models import VOCAB
from tests.plugins.tensorrt.rtx_builds import needs_rtx
from tests.tools.test_synthetic_checkpoint import small

CACHE = 64
EXPERTS = "model.layers.0.mlp.experts"
OURS = ("Mxfp4GateUp", "Mxfp4Down")
LOWERED = ["tensorrt", "tensorrt-sm100"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt_oss(tmp_path_factory.mktemp("gpt-oss"), packed=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer, of two layers."""
    return synthetic.write(small("gpt-oss-20b", tmp_path_factory.mktemp("whole") / "pair", layers=2, format="mxfp4"))


@pytest.fixture(scope="module")
def attached(folder: Path) -> Callable[[str, bool], Compiled]:
    """``attached(lowering, kept)``: the target's graph in float32, for ONNX Runtime; experts dense unless kept."""

    @cache
    def make(name: str, kept: bool) -> Compiled:
        lowering = LOWERINGS[name] if kept else replace(LOWERINGS["tensorrt"], expert_blocks=())
        target = Target.open(folder).with_taps()
        recipe = RECIPES["fp32"].keeping_experts(stored_experts(target), lowering)
        half, store = target_component(target, recipe, lowering), StageStore.default()
        traced = graph_stages.trace(store, half, "float32", Quiet())
        return graph_stages.attach(store, half, traced, lowering=lowering, cache_length=CACHE, progress=Quiet())

    return make


def model_of(compiled: Compiled) -> onnx.ModelProto:
    return onnx.load(compiled.attached.path / "model.onnx", load_external_data=False)


@pytest.mark.parametrize("lowering", LOWERED)
def test_experts_are_two_plugins_a_layer_and_nothing_reads_others(attached: Any, lowering: str) -> None:
    model = model_of(attached(lowering, True))
    kinds = [node.op_type for node in model.graph.node]
    layers = kinds.count("Mxfp4GateUp")
    assert layers == kinds.count("Mxfp4Down") > 1
    assert not {"SparseExperts", "TRT_MoE"} & {*kinds}
    for node in model.graph.node:
        if node.op_type in OURS:
            selected = {each.name: each.s.decode() for each in node.attribute}
            assert selected == {"plugin_namespace": "peagle", "plugin_version": "1"}
    # Columns without a token take another's experts, so that none is read for padding.
    shared = {node.input[1] for node in model.graph.node if node.op_type in OURS}
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    assert {makers[name] for name in shared} == {"Where"}
    assert len(shared) == layers


@pytest.mark.parametrize("lowering", LOWERED)
def test_logits_are_those_of_dense_experts(attached: Any, folder: Path, lowering: str) -> None:
    caches = Target.open(folder).spec.caches
    ours, dense = (
        Graph(attached(name, kept).attached.path / "model.onnx", caches, CACHE, rows=2)
        for name, kept in ((lowering, True), ("tensorrt", False))
    )
    rng = np.random.default_rng(0)
    for start, width in ((0, 12), (12, 5)):
        window = target_inputs(rng.integers(2, VOCAB, (2, width)), start, width - 1, width)
        wanted, got = dense(**window), ours(**window)
        np.testing.assert_allclose(got["aux_hidden"], wanted["aux_hidden"], atol=1e-4)
        assert got["tokens"].tolist() == wanted["tokens"].tolist()


def test_blocks_are_written_as_the_checkpoint_stores_them(attached: Any, folder: Path) -> None:
    model = model_of(attached("tensorrt", True))
    load_external_data_for_model(model, str(attached("tensorrt", True).attached.path))
    written = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    stored = load_file(folder / "model.safetensors")
    for stack in STACKS:
        blocks, scales = (stored[f"{EXPERTS}.{stack}_{part}"] for part in ("blocks", "scales"))
        codes, exponents = written[f"{EXPERTS}.{stack}"], written[f"{EXPERTS}.{stack}_scale"]
        assert codes.dtype == exponents.dtype == np.int8
        np.testing.assert_array_equal(codes.view(np.uint8).reshape(blocks.shape), blocks)
        np.testing.assert_array_equal(exponents.view(np.uint8).reshape(scales.shape), scales)
    wide = sum(each.nbytes for name, each in written.items() if ".experts." in name and each.dtype != np.int8)
    narrow = sum(each.nbytes for name, each in written.items() if ".experts." in name and each.dtype == np.int8)
    assert wide < narrow  # biases, and no other copy of the matrices


def test_report_counts_experts_as_stored(attached: Any) -> None:
    record = attached("tensorrt", True).precision
    rows = [row for row in record["matmuls"] if row["role"] == "experts"]
    assert {(row["op"], row["stored"], row["computed"], row["blocks"]) for row in rows} == {
        (op, "int4", "float32", "mxfp4") for op in OURS
    }
    assert all(row["narrow"] for row in rows)
    assert record["recipe"]["experts"] == "stored"


def test_blocks_of_a_gguf_file_are_the_same_numbers(tmp_path: Path) -> None:
    """GGUF orders the halves of bytes otherwise; the stacks of gate and up are apart."""
    from peagle.compiler.precision.on_the_fly_quantizer import OnTheFlyQuantizer
    from peagle.plugins.ops.mxfp4_gate_up.blocks import matrix

    written = gguf_files.write(tmp_path / "model.gguf", "gpt-oss", kinds=("MXFP4",))
    target = Target.open(written.file)
    assert stored_experts(target) == "MXFP4"
    lowering = LOWERINGS["tensorrt"]
    source = target_component(target, RECIPES["fp16"].keeping_experts("MXFP4", lowering), lowering).quantized
    assert isinstance(source, OnTheFlyQuantizer)
    for stack in STACKS:
        name = f"{EXPERTS}.{stack}"
        shape = source.selection.weights[name].shape
        codes, exponents = (np.concatenate([*runs]) for runs in (source.codes(name, shape), source.scales(name, shape)))
        numbers = np.concatenate([run.reshape(-1) for run in target.read(name, shape)]).reshape(shape)
        np.testing.assert_array_equal(matrix(codes, exponents).reshape(shape), numbers)


def test_a_scale_that_is_nan_is_refused_while_blocks_are_read(tmp_path: Path) -> None:
    broken = write_gpt_oss(tmp_path, packed=True)
    stored = load_file(broken / "model.safetensors")
    stored[f"{EXPERTS}.down_proj_scales"][2, 5] = 255
    save_file(stored, broken / "model.safetensors")
    target = Target.open(broken)
    name = f"{EXPERTS}.down_proj"
    blocks = target.blocks(name, target.skeleton.shapes[name])
    assert blocks is not None
    with pytest.raises(BuildError, match=r"scales of .* are zero, negative, NaN or Inf"):
        list(blocks.read())


@needs_rtx
def test_a_build_for_sm_120_has_the_plugins_in_its_plan(whole: Path, cli: Run, tmp_path: Path) -> None:
    """In FP8, with all the rest calibrated; the report says that no weight is quantized twice."""
    out, texts = tmp_path / "engine", tmp_path / "texts.jsonl"
    texts.write_text((json.dumps({"text": "while b: a, b = b, a % b; " * 12}) + "\n") * 4)
    done = cli(
        "build", "--model", whole / "target", "--draft", "none", "--backend", "tensorrt-rtx", "--gpu", "sm_120",
        "--precision", "fp8", "--calib-data", texts, "--max-seq-len", 128, "--max-batch-size", 1, "--out", out,
        "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    report = json.loads((out / "build_report.json").read_text())
    assert report["precision"]["target"]["share"] == 1
    assert not any("second time" in note for note in json.loads(done.out)["warnings"])
    rows = [row for row in report["matmuls"]["target"]["list"] if row.get("role") == "experts"]
    assert rows
    assert {row["blocks"] for row in rows} == {"mxfp4"}
    assert json.loads((out / "engine.json").read_text())["precision"]["experts"] == "stored"


@pytest.mark.parametrize("form", ["dense", "layer"])
def test_a_named_form_of_experts_dequantizes_them(form: str, whole: Path, cli: Run, tmp_path: Path) -> None:
    done = cli(
        "export", whole / "target", "--draft", "none", "--for", "tensorrt-sm100", "--precision", "fp16",
        "--experts", form, "--max-seq-len", 64, "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0, done.err
    model = onnx.load(tmp_path / "out" / "target" / "model.onnx", load_external_data=False)
    assert not {node.op_type for node in model.graph.node} & {*OURS}


def test_dry_run_of_gpt_oss_120b_reads_only_chosen_experts(cli: Run, tmp_path: Path) -> None:
    """Weights and caches for 4 slots of 32,768 tokens are below 80 GB, and the estimate counts distinct experts."""
    done = cli(
        "build", "--model", "gpt-oss-120b", "--precision", "fp8", "--gpu", "b200", "--max-seq-len", 32_768,
        "--dry-run", "--json", "--out", tmp_path / "out",
    )  # fmt: skip
    found = json.loads(done.out)
    experts = next(line for line in found["weights"] if line["role"] == "experts")
    assert (experts["precision"], experts["bytes"]) == ("mxfp4", experts["count"] * 17 // 32)
    assert found["weight_bytes"] + 4 * found["kv"]["target_slot_bytes"] < 80e9
    assert not any("dense" in note for note in found["notes"])
    speed = found["speed_estimate"]
    assert speed["pass_bytes"]["experts"] == pytest.approx(experts["bytes"] * 4 / 128, rel=1e-6)
    assert speed["experts"]["4"] == pytest.approx(128 * (1 - (1 - 4 / 128) ** 5))
