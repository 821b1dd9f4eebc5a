"""Engines of tiny pairs: the cost of their precision is measured, a bad one fails, and its worst layer is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.cli import run_cli
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline.build import build
from peagle.compiler.precision.calibration.calibration_options import CalibrationOptions
from peagle.compiler.precision.calibration.obtain_ranges import describe, obtain
from peagle.compiler.precision.calibration.saved_ranges import Scales
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES, wide_type
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store.stages import StageStore
from peagle.compiler.verify import FILE_NAME, measure_precision, verify_elsewhere
from peagle.compiler.verify.bisect import CACHES
from peagle.compiler.verify.measure_precision import MeasureRequest, measure
from peagle.compiler.verify.precision_cost import EMULATED, RUN, STREAMED, Precision
from peagle.compiler.verify.precision_limits import limits_of
from peagle.engines import Engine
from peagle.engines.folder.manifest import Manifest
from peagle.engines.folder.records import BackendRecord
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.number_formats import PrecisionLimits
from tests.fixtures.commands import Run
from tests.fp8_pairs import fp8_pair
from tests.models import BLOCKED, Pair, make_pair

BAD_LAYER = 3
FREE = PrecisionLimits(10.0, 10.0, 10.0)
SHORT = ("--prompts", 1, "--max-tokens", 4, "--num-speculative-tokens", "2")


def built(pair: Pair, out: Path, precision: str, **options: object) -> Path:
    return build(
        BUILD.request(
            model=str(pair.target), out=out, draft=str(pair.head), backend="onnxruntime", precision=precision,
            max_seq_len=256, num_speculative_tokens=2, **options,
        )
    ).path  # fmt: skip


def measured(engine: Path, request: MeasureRequest) -> Precision:
    found = measure(engine, Manifest.read(engine), Engine.load(engine), request, Quiet())
    assert found is not None
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path)


def write_data(folder: Path) -> Path:
    """Few and short texts: what they are does not matter to a random model."""
    path = folder / "data.jsonl"
    ids = [[(7 * i + 3 * j * j) % 90 + 2 for j in range(48)] for i in range(4)]
    path.write_text("".join(json.dumps({"input_ids": each}) + "\n" for each in ids))
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tiny"), "qwen3")


@pytest.fixture(scope="module")
def int8(tiny: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tiny, tmp_path_factory.mktemp("int8") / "engine", "int8")


@pytest.fixture(scope="module")
def clipped(tiny: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An FP8 engine with one layer whose calibrated input is far too small, so that nearly all of it is cut off.

    That MLP is made to matter, in FP32 as well: in a random model no layer does.
    """
    folder = tmp_path_factory.mktemp("clipped")
    pair = fp8_pair(tiny, folder)
    path = pair.target / "model.safetensors"
    tensors = load_file(path)
    for name in ("gate_proj", "up_proj", "down_proj"):
        tensors[f"model.layers.{BAD_LAYER}.mlp.{name}.input_scale"] *= 1e-4
    tensors[f"model.layers.{BAD_LAYER}.mlp.down_proj.weight_scale"] *= 40
    save_file(tensors, path)
    return built(pair, folder / "engine", "fp8")


@pytest.fixture(scope="module")
def data_of_int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def verdict(int8: Path, data_of_int8: Path) -> dict[str, Any]:
    """What ``verify`` writes of the int8 engine."""
    arguments = ["verify", int8, *SHORT, "--data", data_of_int8]
    assert run_cli([str(each) for each in arguments]) == 0
    content: dict[str, Any] = json.loads((int8 / FILE_NAME).read_text())
    return content


def test_an_int8_engine_is_measured_against_fp32(verdict: dict[str, Any]) -> None:
    found = verdict["precision"]
    assert (found["status"], found["recipe"], found["measured"]) == ("passed", "int8", RUN)
    assert (found["logits"]["texts"], found["logits"]["tokens"]) == (4, 4 * 48)
    assert 0 < found["logits"]["kl_mean"] < 0.05
    assert [each["layer"] for each in found["layers"]] == list(range(7))
    assert 0 < found["layers"][0]["error"] < 0.05, "the embedding is the head, which is narrow"
    assert 0 < found["layers"][1]["error"] < 0.05
    assert found["greedy"]["prompts"] == found["acceptance"]["prompts"] == 8
    assert found["drafter_acceptance"]["prompts"] == 8, "beside the same target with a wide drafter"
    assert found["notes"] == []
    assert verdict["parts"] == {
        "losslessness": "passed", "text": "passed", "parity": "not needed", "precision": "passed",
    }  # fmt: skip
    assert "the engine is in int8" in verdict["not_needed"]["parity"]


def test_an_fp32_engine_has_no_precision_to_measure(int8: Path) -> None:
    manifest = Manifest.read(int8)
    for table in ({}, RECIPES["fp32"].record()):
        assert measure(int8, replace(manifest, precision=table), None, MeasureRequest(), Quiet()) is None


def test_layerwise_reference_gives_the_same_numbers(
    int8: Path, data_of_int8: Path, verdict: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = verdict["precision"]
    monkeypatch.setattr(measure_precision, "UnpublishedPairs", lambda *_: pytest.fail("it made the pair"))
    found = measured(int8, MeasureRequest(data_of_int8, reference="streamed"))
    assert (found.status, found.measured, found.against) == (whole["status"], RUN, STREAMED)
    assert found.logits is not None
    assert asdict(found.logits) == pytest.approx(whole["logits"], rel=1e-3)
    assert (found.greedy, found.acceptance, found.layers) == (None, None, ())
    assert f"verify {int8} --only precision --reference pair" in found.notes[0]


@pytest.mark.slow
def test_a_bad_layer_fails_and_bisecting_names_it(clipped: Path, data: Path, cli: Run) -> None:
    done = cli("verify", clipped, *SHORT, "--data", data, "--bisect")
    assert done.code == 4, done.out
    assert "divergence of the logits is" in done.err
    found = json.loads((clipped / FILE_NAME).read_text())["precision"]
    bisection = found["bisection"]
    assert bisection["costs"][0]["group"] == f"layer {BAD_LAYER} mlp"
    assert bisection["costs"][0]["kl_mean"] > 5 * bisection["costs"][1]["kl_mean"]
    assert bisection["exclude"] == [f"layers.{BAD_LAYER}.mlp.*"]
    assert bisection["reached"]
    assert bisection["goal"] == "within the limits"
    assert bisection["after"]["kl_mean"] <= limits_of("fp8", "").kl_mean < bisection["before"]["kl_mean"]
    assert f"--exclude 'layers.{BAD_LAYER}.mlp.*'" in bisection["command"]
    assert bisection["command"] in done.out
    assert f"layer {BAD_LAYER} adds most" in done.out


@pytest.mark.slow
def test_a_limit_of_the_users_decides(int8: Path, data: Path) -> None:
    assert measured(int8, MeasureRequest(data, limits=replace(FREE, kl_mean=1e-9))).status == "failed"
    assert measured(int8, MeasureRequest(data, limits=FREE)).status == "passed"


def checkpoint_problem(tiny: Pair) -> str:
    shutil.rmtree(tiny.target)
    return "the checkpoint cannot be opened"


def changed(tiny: Pair) -> str:
    config = tiny.head / "config.json"
    config.write_text(config.read_text() + "\n")
    weights = tiny.head / "model.safetensors"
    save_file({name: tensor * 2 for name, tensor in load_file(weights).items()}, weights)
    return "was changed after the build"


@pytest.mark.parametrize("harm", [checkpoint_problem, changed])
def test_missing_checkpoint_is_reported_as_unchecked(
    pair: Pair, tmp_path: Path, data: Path, harm: Callable[[Pair], str]
) -> None:
    engine = built(pair, tmp_path / "engine", "int8")
    why = harm(pair)
    found = measured(engine, MeasureRequest(data))
    assert found.status == "not checked"
    assert why in found.skipped
    assert found.checks == ()


@pytest.mark.slow
def test_unrunnable_plan_is_emulated_with_a_note(int8: Path, tiny: Pair, data: Path) -> None:
    manifest = Manifest.read(int8)
    plan = replace(
        manifest,
        backend=BackendRecord("tensorrt-rtx", "tensorrt", {}, ("sm_120",)),
        precision=RECIPES["int4"].on(wide_type(Checkpoint.open(tiny.target)), LOWERINGS["tensorrt"]).record(),
    )
    found = verify_elsewhere(int8, plan, "there is no GPU", request=MeasureRequest(data, limits=FREE))
    assert found.losslessness is None
    assert found.precision is not None
    assert found.precision.measured == EMULATED
    assert (found.status, found.state("precision"), found.state("text")) == ("not checked", "passed", "passed")
    assert found.not_checked == {"losslessness": "the engine cannot run on this machine: there is no GPU"}
    assert found.precision.logits is not None
    assert found.precision.logits.kl_mean > 0


@pytest.mark.slow
def test_quantized_caches_of_an_unrunnable_plan_are_emulated_and_bisected(
    int8: Path, tiny: Pair, data: Path, tmp_path: Path
) -> None:
    """With nothing narrow but the caches, everything is lost in them; beside weights they have a cost of their own."""
    wide = wide_type(Checkpoint.open(tiny.target))
    alone = PrecisionOptions(kv_cache="fp8").of(RECIPES[wide])
    both = PrecisionOptions(kv_cache="fp8").of(RECIPES["int4"].on(wide, LOWERINGS["tensorrt"]))
    divergences = []
    for recipe in (alone, both):
        engine = Path(shutil.copytree(int8, tmp_path / f"{recipe.name}-engine"))
        backend = BackendRecord("tensorrt-rtx", "tensorrt", {}, ("sm_120",))
        plan = replace(Manifest.read(int8), backend=backend, precision=recipe.record())
        report = json.loads((engine / "build_report.json").read_text())
        report["calibration"] = describe(bundled_ranges(tiny))
        (engine / "build_report.json").write_text(json.dumps(report))
        found = verify_elsewhere(
            engine, plan, "no GPU", request=MeasureRequest(data, bisect=True, limits=FREE)
        ).precision
        assert found is not None
        assert found.logits is not None, found.skipped
        assert found.layers[0].error == 0 < found.layers[1].error < 0.2
        divergences.append(found.logits.kl_mean)
        if recipe is alone:
            assert found.bisection is None
            assert "nothing to bisect" in found.notes[0]
        else:
            assert found.bisection is not None
            assert [cost.exclude for cost in found.bisection.costs if cost.group == CACHES] == [()]
    assert 1e-6 < divergences[0] < divergences[1]


def bundled_ranges(pair: Pair) -> Scales:
    return obtain(CalibrationOptions(), Target.open(pair.target), StageStore.default(), Quiet())


@pytest.mark.slow
def test_an_engine_with_routed_experts_is_measured(tmp_path: Path, data: Path, cli: Run) -> None:
    pair = make_pair(tmp_path / "moe", "qwen3-moe", sizes=BLOCKED)
    done = cli("verify", built(pair, tmp_path / "engine", "int8"), *SHORT, "--data", data, "--bisect", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["precision"]
    assert (found["status"], found["notes"]) == ("passed", [])
    assert found["layers"][0]["error"] == 0 < found["layers"][1]["error"] < 0.1
    groups = {cost["group"] for cost in found["bisection"]["costs"]}
    assert {"layer 0 experts", "layer 0 attention", "layer 3 mlp"} <= groups


def test_unrunnable_unquantized_plan_is_not_measured(int8: Path, data: Path) -> None:
    plan = replace(
        Manifest.read(int8),
        backend=BackendRecord("tensorrt-rtx", "tensorrt", {}, ("sm_120",)),
        precision=RECIPES["fp16"].record(),
    )
    found = verify_elsewhere(int8, plan, "there is no GPU", request=MeasureRequest(data))
    assert not found.passed
    assert found.precision is not None
    assert "can be measured only on a machine that runs the engine" in found.precision.skipped


@pytest.mark.slow
def test_layerwise_check_is_skipped_for_an_engine_that_deviates_from_its_recipe(
    int8: Path, tiny: Pair, data: Path, tmp_path: Path
) -> None:
    engine = Path(shutil.copytree(int8, tmp_path / "engine"))
    weights = engine / "target" / "model.onnx.data"
    content = bytearray(weights.read_bytes())
    weights.unlink()
    start = len(content) // 2
    content[start : start + 4096] = bytes(4096)
    weights.write_bytes(content)
    found = measure(engine, Manifest.read(engine), Engine.load(engine, check="sizes"), MeasureRequest(data), Quiet())
    assert found is not None
    assert "does not match the engine" in found.notes[0]
