"""Builds with TensorRT-RTX, ahead of time: the contents of the engine folder, refusals, and no leftovers of failures.

Nothing runs on a GPU.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler import verify as verification
from peagle.compiler.bundled.prompts import code_prompts
from peagle.compiler.console.progress import Quiet
from peagle.compiler.hardware.machine import LocalGpu, Machine, inspect_machine
from peagle.compiler.pipeline.build import build
from peagle.compiler.pipeline.engine_drafters import DrafterRequest, add_drafter, remove_drafter
from peagle.compiler.pipeline.plan_stages import profiles
from peagle.compiler.request.build_platform import platform_of
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store.stages import StageStore
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.plan_programs import PRODUCT, Program, Step, read_programs
from peagle.compiler.tensorrt.worker_protocol import PlanRequest
from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest
from peagle.engines.folder.records import Profile, Speculation
from peagle.plugins.errors import EnvironmentProblem, UsageError
from peagle.plugins.kernels.pack import read_pack
from peagle.plugins.kernels.sources import kernel_ops
from tests.engines.backends.plan_engine import lowered, plan_engine, plan_manifest
from tests.fixtures.commands import Run
from tests.fixtures.engines import noisy_head
from tests.models import CONFIGS, Pair, make_shallow_pair

RTX = ("--backend", "tensorrt-rtx", "--gpu", "sm_120", "--precision", "fp16")

pytestmark = [
    pytest.mark.skipif(not inspect_machine().has("tensorrt-rtx"), reason="TensorRT-RTX is not installed"),
    pytest.mark.begins_first,
]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """These builds are ahead of time on any machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def demo_plans(_own_stage_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo pair as plans, built by the command a user would type."""
    from peagle.compiler.cli import run_cli

    engine = tmp_path_factory.mktemp("plans") / "demo-rtx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert run_cli(["build", "--model", "demo", *RTX, "--out", str(engine)]) == 0
    return engine


@pytest.fixture
def plans(demo_plans: Path, tmp_path: Path) -> Path:
    """A copy of that engine, to be changed as a test likes."""
    return Path(shutil.copytree(demo_plans, tmp_path / "engine"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_shallow_pair(tmp_path_factory.mktemp("tiny-rtx"), "qwen3")


# ------------------------------------------------------------------------------------------------ a finished build


def test_engine_contains_two_plans_with_plugins_and_kernels(demo_plans: Path) -> None:
    manifest = Manifest.read(demo_plans)
    check_files(manifest.files, demo_plans)
    found = {str(path.relative_to(demo_plans)) for path in demo_plans.rglob("*") if path.is_file()}
    assert found == {*manifest.files, "engine.json"}
    assert not [name for name in found if ".onnx" in name]
    for part, plugin, caches in ((manifest.target, "AcceptTree", 24), (manifest.drafter, "PlaceholderDraft", 4)):
        assert part.plan is not None
        assert (part.plan.layers["PLUGIN_V3"], part.plan.layers["KV_CACHE_UPDATE"]) == (1, caches)
        assert part.plan.plugins == {plugin: 1}
        assert {tensor.name for tensor in part.plan.tensors} == {*part.inputs, *part.outputs}
    assert {cubin.op: cubin.sm for cubin in read_pack(demo_plans / "plugins").cubins} == {
        op.name: 120 for op in kernel_ops()
    }
    assert {"plugins/libpeagle_plugins.so", "plugins/plugin_library.json"} <= found
    assert (manifest.backend.name, manifest.backend.gpus) == ("tensorrt-rtx", ("sm_120",))
    (evidence,) = manifest.evidence
    assert evidence.level == "aot"
    assert evidence.how.endswith("for sm_120; not run")


def test_the_plans_cover_decoding_and_prompts(demo_plans: Path) -> None:
    manifest = Manifest.read(demo_plans)
    assert manifest.target.plan is not None
    assert manifest.drafter.plan is not None
    assert manifest.target.plan.profiles == (
        Profile("verify", (1, 8, 8), (1, 9, 9), (1, 9, 9), (1024, 2112, 2112)),
        Profile("one", (1, 1, 1), (1, 9, 9), (1, 9, 9), (1024, 2112, 2112)),
        Profile("prefill", (1, 1, 1), (1, 512, 512), (1, 9, 9), (1024, 2112, 2112)),
    )
    assert [profile.emitted for profile in manifest.drafter.plan.profiles] == [(2, 9, 9)] * 3


def test_added_drafters_have_the_plans_of_a_build_and_the_target_keeps_its_own(plans: Path, tmp_path: Path) -> None:
    """The same head gets the very plan of the build. One trained for fewer drafts covers the windows of all others."""
    before = {path: path.read_bytes() for path in plans.rglob("*") if path.is_file() and path.name != "engine.json"}
    built = Manifest.read(plans).drafter
    twin = add_drafter(DrafterRequest(plans, "demo", "twin"))
    noisy = add_drafter(DrafterRequest(plans, str(noisy_head(tmp_path / "noisy", 3))))
    manifest = Manifest.read(plans)
    check_files(manifest.files, plans)
    added = {str(path.relative_to(plans)) for path in plans.rglob("*") if path.is_file()} - {"engine.json"}
    assert added == {*manifest.files}
    assert {name for name in added if name.startswith("drafters/noisy/")} == {
        f"drafters/noisy/{name}" for name in ("config.json", "model.plan", "model.plan.graph.json")
    }
    assert {path: path.read_bytes() for path in before} == before
    assert manifest.files["drafters/twin/model.plan"] == manifest.files["drafter/model.plan"]
    assert replace(twin.record.part, file="", origin=built.origin) == replace(built, file="")
    assert noisy.record.speculation.max_num_speculative_tokens == 3
    assert [each.emitted for each in noisy.record.part.plan.profiles] == [(2, 4, 9)] * 3
    assert any("were not checked" in each for each in noisy.warnings)
    for name in ("twin", "noisy"):
        remove_drafter(plans, name)
    assert {path for path in plans.rglob("*") if path.is_file() and path.name != "engine.json"} == {*before}


def test_drafter_for_plans_of_another_version_is_refused(plans: Path) -> None:
    manifest = Manifest.read(plans)
    backend = replace(manifest.backend, versions={"tensorrt-rtx": "1.0.0"})
    replace(manifest, backend=backend).write(plans)
    with pytest.raises(EnvironmentProblem, match=r"were built with tensorrt-rtx 1\.0\.0, but") as caught:
        add_drafter(DrafterRequest(plans, "demo", "twin"))
    assert "a machine that has tensorrt-rtx 1.0.0" in caught.value.fix
    assert not (plans / "drafters").exists()


def test_rerun_reuses_every_step_with_the_same_report(demo_plans: Path, tmp_path: Path) -> None:
    config = json.loads((demo_plans / "resolved_config.yaml").read_text())
    result = build(BUILD.request(**BUILD.flat(config, "the engine") | {"out": tmp_path / "again"}))
    steps = {phase["phase"]: phase["reused"] for phase in result.report["phases"] if "reused" in phase}
    assert set(steps) >= {"plan target", "plan drafter", "kernels"}
    assert all(steps.values())
    first = Manifest.read(demo_plans)
    assert (first.target, first.drafter, first.backend, first.speculation, first.precision) == (
        result.manifest.target, result.manifest.drafter, result.manifest.backend, result.manifest.speculation,
        result.manifest.precision,
    )  # fmt: skip


def test_report_includes_tensorrt_resource_use(demo_plans: Path) -> None:
    report = json.loads((demo_plans / "build_report.json").read_text())
    assert all(report["plans"][name]["peak_rss_bytes"] > 1 << 26 for name in ("target", "drafter"))
    numbers, k = report["warnings"]
    assert "outputs were not checked: this machine cannot run an engine for sm_120" in numbers
    assert k.startswith("K = 8 is the trained depth of the head and was not measured")
    for table in report["matmuls"].values():
        assert {(each["stored"], each["computed"], each["by"]) for each in table["list"]} == {
            ("float16", "float16", "plan")
        }


def test_inspect_needs_neither_a_gpu_nor_tensorrt(cli: Run, demo_plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt_rtx", "onnx", "cuda", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    text = cli("inspect", demo_plans).out
    for said in (
        "for sm_120", "verify: rows 1 to 8, columns 1 to 9", "one: rows 1, columns 1 to 9",
        "prefill: rows 1, columns 1 to 512", "AcceptTree 1",
        "fp16 (100.0% of the weights); according to the plan",
        "PlaceholderDraft 1", "KV_CACHE_UPDATE 24", "24 caches float16 [?, 2, 2112, 32]", "input_ids int64 [?, ?]",
        "target/model.plan", "kernel NumbersAt", "registers", "plugin library", " and sm_120, ",
    ):  # fmt: skip
        assert said in text
    found = json.loads(cli("inspect", demo_plans, "--json").out)
    assert [profile["name"] for profile in found["drafter"]["plan"]["profiles"]] == ["verify", "one", "prefill"]
    assert {kernel["sm"] for kernel in found["kernels"]} == {"sm_120"}
    assert found["plugin_library"]["gpus"] == ["sm_120"]
    assert found["operators"] == {"target": None, "drafter": None}


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_becomes_plans(family: str, tmp_path: Path) -> None:
    pair = make_shallow_pair(tmp_path, family)
    count = pair.config.get("text_config", pair.config)["num_hidden_layers"]
    precision = "bf16" if family == "gpt-oss" else None
    manifest = build(
        BUILD.request(
            model=str(pair.target), out=tmp_path / "engine", draft=str(pair.head), backend="tensorrt-rtx",
            gpus=("sm_120",), precision=precision, max_seq_len=128, max_batch_size=2,
        )
    ).manifest  # fmt: skip
    assert manifest.precision["recipe"] == (precision or "fp16")  # the checkpoint is of FP32
    for part, layers in ((manifest.target, count), (manifest.drafter, 2)):
        assert part.plan is not None
        assert part.plan.layers["PLUGIN_V3"] == sum(part.plan.plugins.values()) == 1
        assert part.plan.layers["KV_CACHE_UPDATE"] == 2 * layers
        kind = {"bf16": "bfloat16", "fp16": "float16"}[manifest.precision["recipe"]]
        assert {t.dtype for t in part.plan.tensors if "_cache." in t.name} == {kind}
        programs = read_programs(tmp_path / "engine" / part.file)
        fused = sum("mha" in step.name for program in programs for step in program.steps)
        assert fused == layers * len(part.plan.profiles)
        assert not [step for program in programs for step in program.steps if _multiplies_scores(program, step)]


def _multiplies_scores(program: Program, step: Step) -> bool:
    """Return whether both factors of a matmul are computed: queries and keys, or scores and values."""
    factors = [program.tensors[name] for name in step.reads[:2] if name in program.tensors]
    return step.kind == PRODUCT and len(factors) == 2 and not any(factor.constant for factor in factors)


def test_an_eagle_3_drafter_becomes_a_plan_whose_further_passes_have_no_features(
    eagle3_pair: Pair, tmp_path: Path
) -> None:
    graph = lowered(eagle3_pair.target, eagle3_pair.head, "float16", 128)["drafter"]
    made = profiles("drafter", 1, Speculation(4, 6, None), 96, is_autoregressive=True)
    facts = build_plan(PlanRequest("drafter", graph, "tensorrt-rtx", ("sm_120",), made), tmp_path / "plan", Quiet())
    assert facts.plan.plugins == {"PlaceholderDraft": 1}
    shapes = {tensor.name: tensor.shape for tensor in facts.plan.tensors}
    assert (shapes["aux_hidden"], shapes["draft_hidden"], shapes["next_input_ids"]) == (
        (-1, -1, 144),
        (-1, 48),
        (-1, 2),
    )


@pytest.mark.slow
def test_an_eagle_3_pair_becomes_an_engine_from_checkpoints_and_from_an_export(
    cli: Run, eagle3_pair: Pair, tmp_path: Path
) -> None:
    pair = ("--model", eagle3_pair.target, "--draft", eagle3_pair.head, "--max-seq-len", 64)
    assert cli("build", *pair, *RTX, "--out", tmp_path / "engine", "-q").code == 0
    exporting = ("--for", "tensorrt", "--gpu", "sm_120", "--precision", "fp16", "--out", tmp_path / "export", "-q")
    assert cli("export", *pair, *exporting).code == 0
    again = ("build", "--from", tmp_path / "export", "--backend", "tensorrt-rtx", "--out", tmp_path / "again", "-q")
    assert cli(*again).code == 0
    built, other = (Manifest.read(tmp_path / name) for name in ("engine", "again"))
    assert built.method == other.method == "eagle3"
    assert built.drafter is not None
    assert other.drafter is not None
    assert built.drafter.plan == other.drafter.plan
    assert built.drafter.plan is not None
    assert [each.name for each in built.drafter.plan.profiles][-2:] == ["further", "further one"]


def test_same_files_on_onnx_runtime_match_the_onnx_runtime_engine(
    demo_plans: Path, demo_engine: Path, tmp_path: Path
) -> None:
    """The very graphs that the plans were built from, in FP16, through the function bodies of our plugins."""
    root = StageStore.default().root
    built = json.loads((demo_plans / "build_report.json").read_text())["graphs"]
    graphs = {name: root / f"attach-{name}" / key / "model.onnx" for name, key in built.items()}
    engine = Engine.load(demo_engine, threads=1)
    shapes = Manifest.read(demo_plans).shapes
    manifest = plan_manifest(replace(engine.manifest, shapes=shapes), graphs, tmp_path)
    same, _ = plan_engine(tmp_path, manifest, demo_engine, slots=4)
    prompts = [prompt.text for prompt in code_prompts(4)]
    greedy = SamplingParams(max_tokens=48, ignore_eos=True)
    params = [greedy, replace(greedy, temperature=0.8, top_p=0.95, seed=7)] * 2
    expected = [output.token_ids for output in engine.generate(prompts, params)]
    for k in (0, 5):
        found = [output.token_ids for output in same.generate(prompts, params, num_speculative_tokens=k)]
        assert found == expected


# ------------------------------------------------------------------------------------------------ what is refused


def test_running_without_the_gpu_explains_what_to_do(cli: Run, plans: Path) -> None:
    for verb in (["run", plans, "--prompt", "x"], ["verify", plans]):
        done = cli(*verb)
        assert done.code == 3
        assert "built for sm_120 with tensorrt-rtx 1." in done.err
        assert "this machine has no NVIDIA GPU" in done.err
        assert "--backend onnxruntime" in done.err
    found = json.loads((plans / verification.FILE_NAME).read_text())
    assert (found["status"], found["parts"]["text"]) == ("not checked", "passed"), "which takes no run"
    assert set(found["not_checked"]) == {"losslessness", "precision"}


@pytest.mark.parametrize("name", ["target/model.plan", "drafter/model.plan", "plugins/accept_prefix.sm_120.cubin"])
def test_a_damaged_plan_is_refused_before_anything_reads_it(cli: Run, plans: Path, name: str) -> None:
    content = bytearray((plans / name).read_bytes())
    content[len(content) // 2] ^= 1
    (plans / name).chmod(0o644)
    (plans / name).write_bytes(content)
    for verb in (["run", plans, "--prompt", "x"], ["inspect", plans]):
        done = cli(*verb)
        assert done.code == 3
        assert name in done.err
        assert "copy the whole folder again" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["qwen3-coder-30b", "--precision", "fp16"], 3, ["no NVIDIA GPU", "export", "tensorrt-rtx", "onnxruntime"]),
        (["demo", "--backend", "tensorrt"], 3, ["TensorRT is not installed", "--backend tensorrt-rtx"]),
        (["demo", "--backend", "tensorrt-rtx"], 2, ["no GPU was specified", "--gpu sm_120"]),
        (["demo", "--backend", "tensorrt-rtx", "--gpu", "b200"], 2, ["does not support sm_100", "--backend tensorrt"]),
        (["demo", "--backend", "tensorrt-rtx", "--gpu", "rtx-5909"], 2, ["rtx-5090"]),
        (["demo", *RTX[:-1], "fp32"], 2, ["no attention kernel"]),
        (
            ["demo", *RTX[:2], "--gpu", "sm_80", "--precision", "fp8"],
            2,
            ["FP8 requires sm_89", "--precision int8, bf16 or fp16"],
        ),
        (["demo", *RTX[:-1], "fp7"], 2, ["unknown precision 'fp7'"]),
        (["demo", *RTX, "--lowering", "ort"], 2, ["--lowering ort does not work with TensorRT-RTX"]),
        (["demo", *RTX, "--max-batch-size", 0], 2, ["not between 1 and 256"]),
        (["demo", *RTX, "--optimization-level", 9], 2, ["not between 0 and 5"]),
        (["demo", *RTX, "--workspace-gb", -1], 2, ["not a positive size"]),
        (["demo", "--max-batch-size", 4, "--workspace-gb", 2], 2, ["--max-batch-size and --workspace-gb"]),
        (["demo", "--backend", "onnxruntime", "--gpu", "sm_120"], 2, ["does not work with ONNX Runtime"]),
        (["demo", "--backend", "openvino"], 2, ["onnxruntime, tensorrt, tensorrt-rtx"]),
    ],
)
def test_invalid_build_is_rejected_before_reading(
    cli: Run, arguments: list[Any], code: int, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "peagle.compiler.pipeline.build.resolve", lambda *_: pytest.fail("it looked for the checkpoint")
    )
    done = cli("build", *arguments, "--out", tmp_path / "out")
    assert done.code == code, done.err
    for words in said:
        assert words in done.err
    assert list(tmp_path.iterdir()) == []


def test_impossible_request_is_rejected_before_reading_the_checkpoint(tmp_path: Path) -> None:
    request = BUILD.request(
        model="x", out=tmp_path / "out", backend="tensorrt-rtx", gpus=("sm_120",), exclude=("layers.0.*",)
    )
    assert platform_of(request).gpus == ("sm_120",), "an FP8 checkpoint has something to exclude from"
    with pytest.raises(UsageError, match="has no effect"):
        platform_of(replace(request, precision=replace(request.precision, name="bf16")))


@pytest.mark.parametrize(
    ("name", "sm", "lowering"), [("NVIDIA B200", 100, "tensorrt-sm100"), ("NVIDIA H100", 90, "tensorrt")]
)
def test_a_data_centre_gpu_with_tensorrt_is_built_for_by_itself(
    name: str, sm: int, lowering: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine((LocalGpu(name, sm),), {"tensorrt": "11.4.0"})
    monkeypatch.setattr("peagle.compiler.request.build_platform.inspect_machine", lambda: machine)
    platform = platform_of(BUILD.request(model="demo", out=tmp_path / "out"))
    assert (platform.backend, platform.gpus, platform.lowering.name) == ("tensorrt", (f"sm_{sm}",), lowering)
    assert platform.runs_here


# ------------------------------------------------------------------------------------------------ accidents


@pytest.mark.slow
def test_ctrl_c_while_tensorrt_builds_leaves_no_engine_and_the_next_build_resumes(
    cli: Run, demo_plans: Path, tiny: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture ``demo_plans`` has compiled the kernels."""
    cache, out = tmp_path / "cache", tmp_path / "engine"
    cache.mkdir()
    for name in ("trace-target", "attach-target", "trace-drafter", "attach-drafter", "kernels", "plugin-library"):
        (cache / name).symlink_to(StageStore.default().root / name)
    monkeypatch.setenv("PEAGLE_CACHE", str(cache))
    sizes = ["--max-seq-len", "64", "--max-batch-size", "1"]
    arguments = ["build", str(tiny.target), "--draft", str(tiny.head), *RTX, *sizes, "--out", str(out), "--json"]
    command = [sys.executable, "-c", "from peagle.compiler.cli import main; main()", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 120
        while not list(cache.glob("plan-target/.*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"resumes" in said
    assert not out.exists()
    assert [path.suffix for path in (cache / "plan-target").iterdir()] == [".lock"]
    done = cli(*arguments)
    assert done.code == 0, done.err
    made = {phase["phase"] for phase in json.loads(done.out)["phases"] if phase.get("reused") is False}
    assert made == {"plan target", "plan drafter"}
    check_files(Manifest.read(out).files, out)


@pytest.mark.slow
def test_a_plan_that_tensorrt_refuses_leaves_no_engine(cli: Run, demo_plans: Path, tmp_path: Path) -> None:
    done = cli("build", "demo", *RTX, "--workspace-gb", 1e-9, "--out", tmp_path / "out")
    assert done.code == 5, done.err
    assert list(tmp_path.iterdir()) == []
