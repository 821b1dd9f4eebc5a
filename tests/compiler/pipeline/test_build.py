"""Builds: contents of a finished engine, errors for bad input, and no engine after a failure."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle.compiler.checkpoints.resolve_names import resolve
from peagle.compiler.pipeline import shared_steps
from peagle.compiler.pipeline.build import build
from peagle.compiler.pipeline.cpu_kernels import CpuKernels
from peagle.compiler.request.request import CompileRequest
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store import publish
from peagle.compiler.store.stage_origin import StageOrigin
from peagle.compiler.store.stages import StageStore
from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest
from peagle.graphs import stream_weights
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.errors import BuildError, EnvironmentProblem, PeagleError, UsageError
from peagle.plugins.graph_contract import MAX_DRAFTS
from peagle.plugins.optional_packages import install
from tests.fixtures.commands import Run
from tests.fixtures.stages import cache_with_the_traces
from tests.models import Pair
from tests.tokenizer_files import PANICS, inserting

# Another lowering of the demo: the session's first build has cached its traces, so the rest takes seconds.
OTHER_DEMO = ("build", "--model", "demo", "--num-speculative-tokens", 4, "--lowering", "std")


def options(pair: Pair, out: Path, **changes: Any) -> CompileRequest:
    return BUILD.request(**{"model": str(pair.target), "draft": str(pair.head), "out": out} | changes)


def refusal(kind: type[PeagleError], pair: Pair, **changes: Any) -> PeagleError:
    out = pair.target.parent / "out"
    with pytest.raises(kind) as caught:
        build(options(pair, out, **changes))
    assert not out.exists()
    return caught.value


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


# ------------------------------------------------------------------------------------------------ a finished build


def test_engine_folder_matches_the_manifest(demo_engine: Path) -> None:
    manifest = Manifest.read(demo_engine)
    check_files(manifest.files, demo_engine)
    found = {str(path.relative_to(demo_engine)) for path in demo_engine.rglob("*") if path.is_file()}
    assert found == {*manifest.files, "engine.json"}
    expected = {"build_report.json", "build_report.html", "resolved_config.yaml"}
    expected |= {"tokenizer.json", "generation_config.json"}
    expected |= {
        f"{part}/{name}" for part in ("target", "drafter") for name in ("model.onnx", "model.onnx.data", "config.json")
    }
    assert expected <= found
    assert manifest.shapes.cache_length == manifest.shapes.max_seq_len + 2 * 8
    assert manifest.speculation.trained_depth == manifest.speculation.max_num_speculative_tokens == 8
    assert manifest.eos_token_ids == (0,)
    assert [item.level for item in manifest.evidence] == ["parity"]


def test_the_report_has_time_memory_and_the_choice_of_k(demo_engine: Path) -> None:
    report = json.loads((demo_engine / "build_report.json").read_text())
    phases = {phase["phase"]: phase for phase in report["phases"]}
    assert {
        "read",
        "trace target",
        "attach target",
        "trace drafter",
        "attach drafter",
        "choose K",
        "measure batches",
    } <= set(phases)
    assert all(phase["seconds"] >= 0 and phase["peak_rss_bytes"] > 1 << 20 for phase in phases.values())
    choice = report["choose_k"]
    assert [rate["k"] for rate in choice["rates"]] == list(range(9))
    measured = Manifest.read(demo_engine).speculation.measured
    assert measured is not None
    assert [(each.rows, len(each.costs)) for each in measured.batches] == [(2, 9), (4, 9)]
    assert (
        choice["k"] == report["num_speculative_tokens"] == Manifest.read(demo_engine).speculation.num_speculative_tokens
    )


def test_an_engine_with_no_memory_for_batches_is_built_without_their_costs(
    cli: Run, demo_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise EnvironmentProblem("not enough memory for 4 requests")

    monkeypatch.setattr("peagle.compiler.pipeline.assemble_engine.cached_batches", full)
    done = cli("build", "--config", demo_engine / "resolved_config.yaml", "--out", tmp_path / "again")
    assert done.code == 0, done.err
    assert "rounds of several requests were not measured, so their K comes from estimates" in done.err
    assert f"`peagle-compile tune {tmp_path / 'again'}` measures them: not enough memory for 4 requests" in done.err
    measured = Manifest.read(tmp_path / "again").speculation.measured
    assert measured is not None
    assert measured.batches == ()


def test_the_resolved_config_repeats_the_build(cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    done = cli("build", "--config", demo_engine / "resolved_config.yaml", "--out", tmp_path / "again")
    assert done.code == 0, done.err
    first, second = Manifest.read(demo_engine), Manifest.read(tmp_path / "again")
    assert (first.target, first.drafter, first.shapes, first.speculation) == (
        second.target, second.drafter, second.shapes, second.speculation,
    )  # fmt: skip


def test_a_rerun_reuses_every_step_and_replaces_the_engine(cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    for _ in range(2):
        report = json.loads(cli("build", "demo", "--out", out, "--json").out)
        steps = [phase for phase in report["phases"] if "reused" in phase]
        assert steps[0]["phase"] == "kernels"
        assert len(steps) == 7
        assert all(phase["reused"] for phase in steps)
    assert Engine.load(out).generate(["x ="], SamplingParams(max_tokens=4))[0].token_ids
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]


def test_a_damaged_engine_is_cured_by_building_again(cli: Run, engine: Path) -> None:
    with (engine / "target" / "model.onnx.data").open("r+b") as file:
        file.write(b"\xff" * 64)
    assert cli("inspect", engine).code == 3
    assert cli("build", "demo", "--out", engine).code == 0
    assert cli("inspect", engine).code == 0


def test_engine_files_are_independent_of_the_stage_cache(demo_engine: Path) -> None:
    assert {path.stat().st_nlink for path in demo_engine.rglob("*") if path.is_file()} == {1}


@pytest.mark.parametrize("part", ["target", "drafter"])
@pytest.mark.parametrize("graph", ["model", "semantic"])
def test_other_tools_open_the_graphs_of_an_engine(demo_engine: Path, part: str, graph: str) -> None:
    path = demo_engine / part / f"{graph}.onnx"
    onnx.checker.check_model(str(path))
    assert all(each.raw_data for each in onnx.load(path).graph.initializer)


def test_k_above_the_trained_depth_is_built_with_a_warning(cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    done = cli(
        "build", "demo", "--out", tmp_path / "engine", "--num-speculative-tokens", 11, "--max-seq-len", 64, "--json"
    )
    assert done.code == 0
    (warning,) = json.loads(done.out)["warnings"]
    assert "exceeds the trained depth of 8" in warning
    assert warning in done.err
    engine = Engine.load(tmp_path / "engine")
    assert engine.num_speculative_tokens == 11
    assert engine.manifest.shapes.cache_length == 64 + 2 * 11
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    texts = {engine.generate(["x ="], params, num_speculative_tokens=k)[0].text for k in (0, 11)}
    assert len(texts) == 1


def test_max_seq_len_is_capped_at_the_models(cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    done = cli("build", "demo", "--out", tmp_path / "engine", "--num-speculative-tokens", 4, "--max-seq-len", 1 << 20)
    assert done.code == 0
    assert "max_seq_len was reduced to 2048" in done.err


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("k", [-1, -3])
def test_k_below_zero_is_wrong_usage(pair: Pair, k: int) -> None:
    problem = refusal(UsageError, pair, num_speculative_tokens=k)
    assert f"{k} is below 0" in problem.what


@pytest.mark.parametrize("k", [MAX_DRAFTS + 1, 999, 1 << 62])
def test_k_beyond_the_kernel_limit_is_a_usage_error(pair: Pair, k: int) -> None:
    problem = refusal(UsageError, pair, num_speculative_tokens=k)
    assert f"{k} is above {MAX_DRAFTS}" in problem.what


@pytest.mark.parametrize(
    ("kind", "changes", "available"),
    [
        (UsageError, {"backend": "openvino"}, "onnxruntime, tensorrt, tensorrt-rtx"),
        (UsageError, {"precision": "fp16", "backend": "onnxruntime"}, "computes in fp32"),
        (UsageError, {"lowering": "tensorrt"}, "ort, cpu, std"),
        (UsageError, {"max_seq_len": 0}, ""),
    ],
)
def test_unavailable_choice_lists_available_ones(
    pair: Pair, kind: type[PeagleError], changes: dict[str, Any], available: str
) -> None:
    assert available in refusal(kind, pair, **changes).why


def test_an_unknown_model_suggests_the_nearest(cli: Run, tmp_path: Path) -> None:
    done = cli("build", "dmeo", "--out", tmp_path / "out")
    assert done.code == 2
    assert "did you mean demo?" in done.err


@pytest.mark.parametrize("half", ["target", "head"])
def test_a_folder_without_config_is_refused(cli: Run, pair: Pair, half: str, tmp_path: Path) -> None:
    (getattr(pair, half) / "config.json").unlink()
    done = cli("build", "--model", pair.target, "--draft", pair.head, "--out", tmp_path / "out")
    assert done.code == 5
    assert f"{getattr(pair, half)} has no config.json" in done.err


def test_an_unsupported_architecture_names_the_supported_ones(pair: Pair) -> None:
    edit_config(pair.target, architectures=["MambaForCausalLM"])
    problem = refusal(BuildError, pair)
    assert "MambaForCausalLM" in problem.what
    assert "Qwen3ForCausalLM" in problem.why


def test_mismatched_head_reports_every_mismatch(pair: Pair) -> None:
    edit_config(pair.head, target_hidden_size=64, vocab_size=97)
    edit_weights(pair.head, mask_hidden=None)
    text = str(refusal(BuildError, pair))
    assert "hidden size 64" in text
    assert "vocab_size 97" in text
    assert "mask_hidden" in text


def test_truncated_weights_are_refused(pair: Pair) -> None:
    weights = pair.target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    problem = refusal(BuildError, pair)
    assert str(weights) in problem.what
    assert "truncated" in problem.why


def test_weights_that_change_during_a_build_give_no_engine(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training job saves its next step: the first tensors were those of the last one."""

    def attach_and_save(*given: Any) -> Any:
        runs = attach(*given)
        edit_weights(pair.target, **{"model.norm.weight": torch.ones(pair.config["hidden_size"])})
        return runs

    attach, cached = stream_weights.attach, StageStore.default().root / "attach-target"
    before = [*cached.glob("*/")]
    with monkeypatch.context() as patch:
        patch.setattr(stream_weights, "attach", attach_and_save)
        error = refusal(BuildError, pair)
    assert "model.safetensors changed while it was read" in error.what
    assert error.fix
    assert [*cached.glob("*/")] == before  # no later build reuses them


def test_weights_that_are_not_safetensors_are_refused(pair: Pair) -> None:
    torch.save({"a": torch.zeros(1)}, pair.head / "model.safetensors")
    assert "PyTorch archive" in refusal(BuildError, pair).why


def test_overflowing_engine_is_rejected_while_choosing_k(pair: Pair) -> None:
    shape = load_file(pair.target / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    edit_weights(pair.target, **{"model.layers.0.mlp.up_proj.weight": torch.full_like(shape, 1e38)})
    error = refusal(BuildError, pair)
    assert "out does not work: the target's logits are NaN or infinite after 4 of 4 prompts" in error.what


@pytest.mark.parametrize(("value", "name"), [(np.nan, "1 NaN and 0 Inf"), (-np.inf, "0 NaN and 1 Inf")])
def test_weights_that_are_not_finite_are_refused(
    cli: Run, demo_engine: Path, value: float, name: str, tmp_path: Path
) -> None:
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_bytes((resolve("demo").drafter / "config.json").read_bytes())
    tensors = load_file(resolve("demo").drafter / "model.safetensors")
    tensors["fc.weight"][3, 5] = value
    save_file(tensors, head / "model.safetensors")
    done = cli("build", "--model", "demo", "--draft", head, "--out", tmp_path / "out")
    assert done.code == 5
    assert f"fc.weight has {name}" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"max_position_embeddings": "48"},
        {"rope_parameters": []},
        {"rope_parameters": {"rope_type": "banana"}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0}},
        {"layer_types": 3},
        {"hidden_act": ["silu"]},
        {"is_causal": False},
        {"eos_token_id": 10**9},
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_its_file(pair: Pair, change: dict[str, Any]) -> None:
    (pair.target / "generation_config.json").unlink(missing_ok=True)
    edit_config(pair.target, **change)
    assert "target/config.json" in refusal(BuildError, pair).what


def test_device_file_as_configuration_is_rejected(pair: Pair) -> None:
    (pair.target / "config.json").unlink()
    (pair.target / "config.json").symlink_to("/dev/null")
    assert "is a link to /dev/null" in refusal(BuildError, pair).what


def test_damaged_chat_template_is_rejected_before_any_work(pair: Pair) -> None:
    (pair.target / "tokenizer_config.json").write_text('{"chat_template": [{"name": "../x", "template": "y"}]}')
    assert "'../x'" in refusal(BuildError, pair).why


def test_a_tokenizer_is_needed(pair: Pair) -> None:
    (pair.target / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in refusal(BuildError, pair).what


def test_tokenizer_of_another_model_is_rejected(pair: Pair) -> None:
    tokenizer = json.loads((pair.target / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["stranger"] = 500
    (pair.target / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "ids up to 500, but the model's vocabulary has 96 ids" in refusal(BuildError, pair).what
    (pair.target / "tokenizer.json").write_text("{}")
    assert "cannot be read as a tokenizer" in refusal(BuildError, pair).what


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            {"post_processor": inserting(1_000_000)},
            "inserts token ids up to 1000000, but the model's vocabulary has 96 ids",
        ),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": PANICS}, "content": "x"}}, "cannot encode this text"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 10_000}}, "can expand a text too far"),
    ],
    ids=["ids", "panic", "growth"],
)
def test_a_tokenizer_that_no_engine_could_use_is_refused(pair: Pair, entry: dict[str, Any], says: str) -> None:
    path = pair.target / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entry))
    assert says in refusal(BuildError, pair).what


def test_non_engine_folder_is_not_replaced(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = cli("build", "--model", "demo", "--out", tmp_path)
    assert (done.code, "was not created by peagle-compile" in done.err) == (2, True), done.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("flags", [("--model",), ("--model", "demo", "--precision", "int8", "--calib-data")])
def test_folder_with_an_input_file_is_not_replaced(cli: Run, tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "engine.json").write_text("{}")
    (tmp_path / "file.gguf").write_text("{}")
    done = cli("build", *flags, tmp_path / "file.gguf", "--out", tmp_path)
    assert (done.code, f"contains the input file {tmp_path / 'file.gguf'}" in done.err) == (2, True), done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine.json", "file.gguf"]


def test_link_as_out_is_kept_and_followed(cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "big disk" / "engine", tmp_path / "link"
    real.mkdir(parents=True)
    link.symlink_to(real)
    done = cli("build", "demo", "--out", link)
    assert done.code == 0, done.err
    assert link.is_symlink()
    assert Engine.load(real).manifest == Engine.load(link).manifest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_current_folder_is_rejected_as_out(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("build", "demo", "--out", ".")
    assert done.code == 2
    assert "is the current folder" in done.err


@pytest.mark.parametrize(
    ("out", "code"), [("x" * 250, 2), ("two\nlines", 2), ("\udcff", 2), ("/dev/null/e", 3), ("/proc/e", 3)]
)
@pytest.mark.parametrize("verb", ["build", "export", "quantize"])
def test_unusable_out_is_rejected_immediately(cli: Run, tmp_path: Path, verb: str, out: str, code: int) -> None:
    done = cli(verb, "demo", "--out", tmp_path / out)
    assert done.code == code
    assert "internal error of peagle-compile" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_answered_with_the_line_that_installs_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    problem = refusal(EnvironmentProblem, pair)
    assert "torch" in problem.what
    assert problem.fix == f"run `{install('export')}`"


# ------------------------------------------------------------------------------------------------ accidents


def test_a_full_disk_leaves_no_engine_and_the_next_build_resumes(
    cli: Run, demo_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "engine"
    monkeypatch.setenv("PEAGLE_CACHE", cache_with_the_traces(tmp_path.with_name(f"{tmp_path.name}-cache")))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        done = cli(*OTHER_DEMO, "--out", out)
    assert done.code == 5
    assert "is full" in done.err
    assert "are needed" in done.err
    assert "nothing was published" in done.err
    assert not out.exists()
    assert _reused(cli, out) == ["trace target", "trace drafter"]


@pytest.mark.parametrize("step", ["flush_tree", "move_into_place"])
def test_ctrl_c_while_publishing_leaves_no_engine_and_the_next_build_resumes(
    cli: Run, demo_engine: Path, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "engine"

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publish, step, interrupt)
        done = cli(*OTHER_DEMO, "--out", out)
    assert done.code == 130
    assert "resumes" in done.err
    assert list(tmp_path.iterdir()) == []
    assert set(_reused(cli, out)) >= {"trace target", "attach target", "trace drafter", "attach drafter"}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_during_a_step_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    cache, out = tmp_path / "cache", tmp_path / "engine"
    command = [sys.executable, "-c", "from peagle.compiler.cli import main; main()", "build", "demo", "--out", str(out)]
    command += ["--lowering", "ort"]  # does not compile
    environment = os.environ | {"PEAGLE_CACHE": str(cache)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(cache.glob("trace-target/.*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in said
    assert (b"resumes" in said) is (number == signal.SIGINT)
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert [path.suffix for path in (cache / "trace-target").iterdir()] == [".lock"]


def _reused(cli: Run, out: Path) -> list[str]:
    """Return the cached stages that a successful build reuses."""
    report = json.loads(cli(*OTHER_DEMO, "--out", out, "--json").out)
    Engine.load(out)
    return [phase["phase"] for phase in report["phases"] if phase.get("reused")]


@pytest.fixture
def uncompilable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose compiler is there, and fails."""
    none = CpuKernels(None, LOWERINGS["ort"], ["the compiler said: no room"])
    monkeypatch.setattr("peagle.compiler.pipeline.build.cpu_kernels", lambda *_, **__: none)


@pytest.mark.usefixtures("uncompilable")
def test_without_kernels_the_whole_build_is_for_onnx_runtimes_own(pair: Pair, tmp_path: Path) -> None:
    store = StageStore(Path(cache_with_the_traces(tmp_path / "store")))
    request = BUILD.request(
        model=str(pair.target), draft="none", precision="int8", max_seq_len=96, out=tmp_path / "out"
    )
    result = build(request, store=store)
    assert result.manifest.backend.lowering == "ort"
    assert "the compiler said: no room" in result.report["warnings"]
    kept = [StageOrigin.read(folder) for folder in store.root.glob("attach-target/*/")]
    assert [each and each.lowering for each in kept] == ["ort"]


@pytest.mark.usefixtures("uncompilable")
def test_kernel_requiring_build_reports_the_compiler_error(pair: Pair, tmp_path: Path) -> None:
    request = BUILD.request(model=str(pair.target), draft="none", kv_cache_dtype="int8", out=tmp_path / "out")
    with pytest.raises(BuildError, match="kv-cache-dtype int8") as caught:
        build(request, store=StageStore(tmp_path / "store"))
    assert "the compiler said: no room" in caught.value.why


def test_large_weights_have_one_copy_and_are_packed_again_for_the_next_build(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_steps, "ADOPTED_FROM", 1)
    monkeypatch.setattr(publish, "shares_blocks", lambda *_: False)
    store = StageStore(Path(cache_with_the_traces(tmp_path / "store")))
    built = {}
    for name in ("first", "second"):
        request = BUILD.request(
            model=str(pair.target), draft="none", lowering="std", max_seq_len=96, out=tmp_path / name
        )
        result = build(request, store=store)
        check_files(result.manifest.files, result.path)
        assert {path.stat().st_nlink for path in result.path.rglob("*") if path.is_file()} == {1}
        assert [path for path in store.root.glob("attach-*/*") if path.is_dir()] == []
        assert [path for path in store.root.glob("trace-*/*") if path.is_dir()]
        built[name] = {path: entry for path, entry in result.manifest.files.items() if path.startswith("target/")}
    assert built["first"] == built["second"]
