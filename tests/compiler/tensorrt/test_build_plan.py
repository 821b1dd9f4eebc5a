"""Plans built by TensorRT-RTX ahead of time, and failures or interruptions of its process."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.worker_protocol import PlanFacts
from peagle.engines.folder.records import Profile
from peagle.plugins.errors import BuildError, EnvironmentProblem, UsageError
from tests.compiler.tensorrt.conftest import Halves, Width
from tests.compiler.tensorrt.small import BF16, HEAD, VOCAB, Watched, node, request, written
from tests.models import CONFIGS

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")

PLUGIN = {"target": "AcceptTree", "drafter": "PlaceholderDraft"}
Make = Callable[[str, Width], Halves]


def _profiles(part: str) -> tuple[Profile, ...]:
    least = 2 if part == "drafter" else 1
    return (
        Profile("verify", (1, 4, 8), (1, 5, 7), (least, 5, 7), (16, 32, 64)),
        Profile("prefill", (1, 1, 1), (1, 64, 64), (least, 5, 7), (16, 64, 64)),
    )


def _check_family(make: Make, family: str, width: Width, gpus: tuple[str, ...], folder: Path) -> None:
    halves = make(family, width)
    for part, graph in halves.graphs.items():
        out = folder / part / "model.plan"
        depth = halves.layers[part]
        layers = {"PLUGIN_V3": 1, "KV_CACHE_UPDATE": 2 * depth, "ATTENTION_OUTPUT": depth, "MOE": 0}
        asked = request(graph, name=part, gpus=gpus, profiles=_profiles(part), layers=layers)
        _check_facts(build_plan(asked, out, Quiet()), out, graph, part)


def _check_facts(facts: PlanFacts, out: Path, graph: Path, part: str) -> None:
    assert facts.size == out.stat().st_size > graph.with_name("model.onnx.data").stat().st_size
    assert sorted(os.listdir(out.parent)) == ["model.plan", "model.plan.graph.json"]
    assert facts.plan.profiles == _profiles(part)
    assert facts.plan.plugins == {PLUGIN[part]: 1}
    declared = onnx.load(graph, load_external_data=False).graph
    assert [t.name for t in facts.plan.tensors] == [value.name for value in (*declared.input, *declared.output)]
    shape = {tensor.name: (tensor.dtype, tensor.shape) for tensor in facts.plan.tensors}
    assert shape["tokens"] == ("int32", (-1, -1))
    assert shape["input_ids"] == ("int64", (-1, -1))
    assert shape["k_cache.0"] == shape["k_cache.0.out"]
    assert facts.versions["tensorrt-rtx"].startswith("1.")


@pytest.mark.slow
def test_a_pair_in_float16_builds_for_two_gpus(halves_of: Make, tmp_path: Path) -> None:
    _check_family(halves_of, "qwen3", "float16", ("sm_89", "sm_120"), tmp_path)


def test_a_graph_in_bfloat16_builds(tmp_path: Path) -> None:
    facts = build_plan(request(written(tmp_path, dtype=BF16)), tmp_path / "plan", Quiet())
    assert {tensor.name: tensor.dtype for tensor in facts.plan.tensors}["k_cache.0"] == "bfloat16"


@pytest.mark.slow
@pytest.mark.parametrize("width", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_every_family_builds(family: str, width: Width, halves_of: Make, tmp_path: Path) -> None:
    _check_family(halves_of, family, width, ("sm_89", "sm_120"), tmp_path)


def test_progress_grows_to_the_end_and_memory_is_the_child_s_own(tmp_path: Path) -> None:
    weight = bytearray(b"peagle") * (100 << 20)  # our own; a child process inherits it
    watched = Watched()
    facts = build_plan(request(written(tmp_path)), tmp_path / "plan", watched)
    assert watched.steps == ["build small plan of 1000"]
    assert watched.done == 1000
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 50_000_000 < facts.peak_rss_bytes < len(weight) < ours
    assert 0 < facts.seconds < 60


def test_every_limit_is_applied_and_the_log_is_complete(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "peagle")
    asked = request(
        written(tmp_path),
        workspace_bytes=1 << 28,
        optimization_level=1,
        timing_cache=tmp_path / "timings",
    )
    assert build_plan(asked, tmp_path / "new folder" / "plan", Quiet()).size > 0
    levels = {record.levelno for record in caplog.records if "tensorrt-rtx: " in record.getMessage()}
    assert {logging.INFO, logging.DEBUG} <= levels


@pytest.mark.parametrize(
    ("error", "changes", "word"),
    [
        (UsageError, {"gpus": ("sm_100",)}, "TensorRT-RTX does not support sm_100"),
        (UsageError, {"gpus": ("sm_12",)}, "sm_12"),
        (BuildError, {"layers": {"KV_CACHE_UPDATE": 2}}, "KV_CACHE_UPDATE: 1, not 2"),
        (EnvironmentProblem, {"product": "tensorrt", "gpus": ("sm_100",)}, "on this machine"),
    ],
)
def test_errors_of_the_building_process_keep_their_type(
    error: type[Exception], changes: dict[str, object], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out = tmp_path / "plans" / "model.plan"
    with pytest.raises(error) as caught:
        build_plan(request(written(tmp_path), **changes), out, Quiet())
    assert word in str(caught.value)
    assert list(out.parent.iterdir()) == []


def _small_heads(made: onnx.ModelProto) -> None:
    for value in (*made.graph.input, *made.graph.output):
        if value.name in ("q", "k", "k_cache.0", "k_cache.0.out", "y"):
            value.type.tensor_type.shape.dim[3].dim_value = 8


def _wrong_weight(made: onnx.ModelProto) -> None:
    made.graph.initializer[0].dims[:] = [HEAD // 2, 2 * VOCAB]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_small_heads, ("could not build", "not supported by a dedicated kernel")),
        (_wrong_weight, ("cannot parse", "MatMul 'head'")),
        (lambda made: node(made, "attention").__setattr__("op_type", "StringSplit"), ("does not know StringSplit",)),
    ],
)
def test_a_refusal_of_tensorrt_carries_its_reason(
    spoil: Callable[[onnx.ModelProto], None], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(BuildError) as caught:
        build_plan(request(written(tmp_path, spoil)), tmp_path / "plans" / "model.plan", Quiet())
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert list((tmp_path / "plans").iterdir()) == []


def _workers_for(out: Path) -> list[int]:
    """Build processes that write next to ``out``."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"tensorrt.worker" in command and str(out.parent).encode() in command:
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGKILL, "the machine probably ran out of memory"), (signal.SIGSEGV, "SIGSEGV")]
)
def test_a_killed_process_is_a_build_error(number: signal.Signals, word: str, halves_of: Make, tmp_path: Path) -> None:
    out = tmp_path / "plans" / "model.plan"

    def kill() -> None:
        (pid,) = _workers_for(out)
        os.kill(pid, number)

    asked = request(halves_of("qwen3", "float16").graphs["target"], profiles=_profiles("target"))
    with pytest.raises(BuildError) as caught:
        build_plan(asked, out, Watched(kill))
    assert number.name in caught.value.why
    assert word in str(caught.value)
    assert list(out.parent.iterdir()) == []


def test_interruption_ends_the_build_and_keeps_existing_files(halves_of: Make, tmp_path: Path) -> None:
    out = tmp_path / "plans" / "model.plan"
    out.parent.mkdir()
    out.write_text("an older plan")

    def interrupt() -> None:
        assert _workers_for(out)
        raise KeyboardInterrupt

    asked = request(halves_of("qwen3", "float16").graphs["target"], profiles=_profiles("target"))
    with pytest.raises(KeyboardInterrupt):
        build_plan(asked, out, Watched(interrupt))
    assert _workers_for(out) == []
    assert [(path.name, path.read_text()) for path in out.parent.iterdir()] == [("model.plan", "an older plan")]


_BUILD = """
import sys
from pathlib import Path
from peagle.compiler.console import interrupts
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.worker_protocol import PlanRequest
from tests.compiler.tensorrt.small import Watched

interrupts.watch()
build_plan(PlanRequest.from_json(sys.argv[1]), Path(sys.argv[2]), Watched(lambda: print("building", flush=True)))
"""


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM, signal.SIGKILL]
)
def test_a_stopped_command_takes_its_building_process_along(
    number: signal.Signals, halves_of: Make, tmp_path: Path
) -> None:
    out = tmp_path / "plans" / "model.plan"
    asked = request(halves_of("qwen3", "float16").graphs["target"], profiles=_profiles("target"))
    command = [sys.executable, "-c", _BUILD, asked.to_json(), str(out)]
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == "building\n"
        assert _workers_for(out)
        parent.send_signal(number)
        parent.wait(30)
    deadline = time.monotonic() + 20
    while (_workers_for(out) or list(out.parent.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _workers_for(out) == []
    assert list(out.parent.iterdir()) == []
