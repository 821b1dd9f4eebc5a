"""Speed estimates of finished engines use the bytes of their files, next to measured rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.compiler.hardware.cpu_probe import ProbeShape
from peagle.compiler.pipeline.build import build
from peagle.compiler.pipeline.engine_speed import EngineSpeed
from peagle.compiler.pipeline.export import export
from peagle.compiler.request.verb_options import BUILD, EXPORT
from peagle.compiler.resources.speed.model_speed import SpeedQuestion
from peagle.compiler.resources.speed.pass_work import Experts, GraphWork
from peagle.engines.draft_methods import PLAIN
from tests.fixtures.commands import Run
from tests.models import Pair, make_shallow_pair

_TABLES = 1.03  # rotary tables, and the alignment of weights


def test_a_build_compares_its_estimate_with_what_it_measured(demo_engine: Path, cpu_library: Path, cli: Run) -> None:
    report = json.loads((demo_engine / "build_report.json").read_text())
    found, choice = report["speed_estimate"], report["choose_k"]
    file = (demo_engine / "target" / "model.onnx.data").stat().st_size
    weights = sum(found["pass_bytes"][kind] for kind in ("attention", "mlp", "lm_head", "other"))
    assert weights <= file <= _TABLES * weights
    rates = {rate["k"]: rate for rate in choice["rates"]}
    rounds = {each["k"]: each for each in found["rounds"]}
    assert {0, choice["k"]} <= set(rounds) <= set(rates)
    for k, each in rounds.items():
        measured = 1e3 * rates[k]["tokens_per_round"] / rates[k]["tokens_per_second"]
        assert each["measured_ms"] == pytest.approx(measured)
        assert each["error"] == pytest.approx(each["best_ms"] / measured - 1)
    assert "measured here on" in found["sources"][0]
    shown = cli("inspect", demo_engine)
    assert "speed estimate" in shown.out
    assert "the estimate is off by" in shown.out
    assert json.loads(cli("inspect", demo_engine, "--json").out)["speed_estimate"] == found
    page = (demo_engine / "build_report.html").read_text()
    assert "<h2>Speed estimate</h2>" in page


def test_a_build_that_measures_nothing_has_no_estimate(tiny_folder: Path, cli: Run) -> None:
    assert "speed_estimate" not in json.loads((tiny_folder / "build_report.json").read_text())
    assert json.loads(cli("inspect", tiny_folder, "--json").out)["speed_estimate"] == {}
    assert "speed estimate" not in cli("inspect", tiny_folder).out


def test_passes_over_more_columns_read_more_experts() -> None:
    experts = Experts(count=4, chosen=1, bytes=400, values=400, kind="fp32")
    work = GraphWork({"attention": 100}, {}, {}, "fp32", (), 0, 0, experts=experts)
    probe = ProbeShape("fp32", 8, 8, 8, 8, 100, columns=3)
    speed = EngineSpeed(work, None, SpeedQuestion(PLAIN, None, 2), (), None, probe)
    assert speed.pass_bytes == [200, 275, 331]


def test_an_estimate_of_another_version_is_not_shown(engine: Path, cli: Run) -> None:
    path = engine / "build_report.json"
    path.write_text(json.dumps({"speed_estimate": {"rounds": [{"speed": 1}]}}))
    shown = cli("inspect", engine, "--no-hashes")
    assert "speed estimate" not in shown.out


def test_an_export_for_a_gpu_has_the_estimate_of_its_dry_run(tiny_pair: Pair, tmp_path: Path, cli: Run) -> None:
    options = {
        "model": str(tiny_pair.target), "draft": str(tiny_pair.head), "precision": "fp16", "gpus": "b200",
        "acceptance_length": "4:2.5", "out": tmp_path / "export",
    }  # fmt: skip
    report = export(EXPORT.request(**options)).report
    found = report["speed_estimate"]
    dry = cli(
        "export", "--dry-run", "--json", "--model", tiny_pair.target, "--draft", tiny_pair.head, "--precision", "fp16",
        "--gpu", "b200", "--acceptance-length", "4:2.5",
    )  # fmt: skip
    planned = json.loads(dry.out)["speed_estimate"]
    assert found["pass_bytes"] == planned["pass_bytes"]
    kernels, expected = ([each["kernels"] for each in one["rounds"]] for one in (found, planned))
    assert kernels == pytest.approx(expected, rel=0.05)
    assert found["device"] == planned["device"] == "b200"
    shown = cli("inspect", tmp_path / "export")
    assert "for b200, not measured" in shown.out
    ask = ("build", "--from", tmp_path / "export", "--out", tmp_path / "engine", "--dry-run")
    built = cli(*ask)
    assert "for b200, not measured" in built.out
    assert json.loads(cli(*ask, "--json").out)["speed_estimate"] == json.loads(json.dumps(found))


def test_a_build_for_a_named_gpu_has_its_estimate(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    pair = make_shallow_pair(tmp_path / "pair", "qwen3")
    request = BUILD.request(
        model=str(pair.target), draft="none", out=tmp_path / "engine", backend="tensorrt-rtx", gpus="rtx-5090",
        precision="fp16", max_seq_len=96, max_batch_size=1,
    )  # fmt: skip
    found = build(request).report["speed_estimate"]
    assert (found["device"], [each["k"] for each in found["rounds"]]) == ("rtx-5090", [0])
    assert found["rounds"][0]["measured_ms"] is None
