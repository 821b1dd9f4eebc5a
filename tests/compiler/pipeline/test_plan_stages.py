"""The sizes that plans are optimized for, and the plugin library, which is optional without a compiler."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.console.progress import Progress
from peagle.compiler.hardware.machine import LocalGpu, Machine
from peagle.compiler.pipeline.plan_stages import (
    PlanSource,
    PlanStage,
    build_kernels,
    build_plan,
    build_plugin_library,
    profiles,
)
from peagle.compiler.pipeline.shared_steps import PipelineRun
from peagle.compiler.request.build_platform import BuildPlatform
from peagle.compiler.request.request import PlanOptions
from peagle.compiler.store.stages import Stage, StageStore
from peagle.compiler.tensorrt.worker_protocol import PlanFacts, PlanRequest
from peagle.engines.folder.records import PlanRecord, Profile, Speculation
from peagle.graphs.lowering import TENSORRT
from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.kernels import pack as packing
from peagle.plugins.kernels.compile import Cubin
from peagle.plugins.kernels.pack import Pack, read_pack, write_pack
from peagle.plugins.kernels.sources import digest, kernel_ops
from peagle.plugins.tensorrt.library import INDEX, LIBRARY

DRAFTING = Speculation(5, 18, None)
OTHER, H100, H200 = LocalGpu("NVIDIA L40S", 89), LocalGpu("NVIDIA H100 80GB HBM3", 90), LocalGpu("NVIDIA H200", 90)
CUBINS = [Cubin(op.name, 100, digest(op), b"\x7fELF", {}) for op in kernel_ops()]


@pytest.fixture
def run(tmp_path: Path) -> PipelineRun:
    return PipelineRun.begin(StageStore(tmp_path / "store"), None)


@pytest.fixture
def kernels(run: PipelineRun) -> Stage:
    return run.store.run("kernels", [], lambda folder: write_pack(folder, CUBINS))


def compiler(folder: Path, does: str) -> str:
    """Write a fake compiler with the given behavior."""
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return str(path)


def test_the_library_is_compiled_once_for_kernels_and_compiler(
    run: PipelineRun, kernels: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "echo code > kernels.so"))
    first, second = build_plugin_library(run, kernels).stage, build_plugin_library(run, kernels).stage
    assert first is not None
    assert second is not None
    assert set(first.files) == {LIBRARY, INDEX}
    assert (first.reused, second.reused, second.path) == (False, True, first.path)
    assert json.loads((first.path / INDEX).read_text())["gpus"] == ["sm_100"]
    other = run.store.run("kernels", ["new"], lambda folder: write_pack(folder, [replace(CUBINS[0], code=b"new")]))
    third = build_plugin_library(run, other).stage
    assert third is not None
    assert third.path != first.path


def test_kernels_of_another_nvrtc_are_compiled_again(run: PipelineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    version = "13.0.88"
    monkeypatch.setattr("peagle.plugins.kernels.pack.shipped", lambda: Pack(()))
    monkeypatch.setattr("peagle.plugins.kernels.compile.metadata.version", lambda name: version)
    monkeypatch.setattr(packing, "obtain", lambda op, sm: Cubin(op.name, sm, digest(op), version.encode(), {}))
    first, again = build_kernels(run, ["sm_100"]), build_kernels(run, ["sm_100"])
    assert (first.reused, again.reused) == (False, True)
    version = "13.0.99"
    newer = build_kernels(run, ["sm_100"])
    assert {cubin.code for cubin in read_pack(newer.path).cubins} == {b"13.0.99"}


def test_kernels_that_are_shipped_need_no_nvrtc(run: PipelineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their content identifies them, regardless of the compiler."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setattr("peagle.plugins.kernels.pack.shipped", lambda: Pack(tuple(CUBINS)))
    first = build_kernels(run, ["sm_100"])
    others = tuple(replace(cubin, code=b"others") for cubin in CUBINS)
    monkeypatch.setattr("peagle.plugins.kernels.pack.shipped", lambda: Pack(others))
    assert build_kernels(run, ["sm_100"]).path != first.path


@pytest.mark.parametrize(
    ("does", "words"), [(None, "no C++ compiler was found"), ("echo 'error: no room'; exit 1", "error: no room")]
)
def test_build_without_plugin_library_continues_with_a_note(
    run: PipelineRun, kernels: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str | None, words: str
) -> None:
    monkeypatch.setattr("peagle.plugins.cpu.compile.is_installed", lambda name: False)
    monkeypatch.setenv("PATH", "/bin" if does else "")
    monkeypatch.delenv("CXX", raising=False)
    if does:
        monkeypatch.setenv("CXX", compiler(tmp_path, does))
    library = build_plugin_library(run, kernels)
    assert library.stage is None
    (warning,) = library.warnings
    assert warning.startswith("the C++ plugin library was not built: ")
    assert words in warning


@pytest.mark.parametrize(("backend", "tuned_on"), [("tensorrt", H100.name), ("tensorrt-rtx", "")])
def test_plan_of_full_tensorrt_is_not_reused_on_another_gpu_model(
    run: PipelineRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, tuned_on: str
) -> None:
    """TensorRT times kernels on the GPU; H100 and H200 have one architecture. TensorRT-RTX times nothing."""
    asked = list[PlanRequest]()

    def build(request: PlanRequest, out: Path, progress: Progress) -> PlanFacts:
        asked.append(request)
        out.write_bytes(b"a plan")
        return PlanFacts(PlanRecord(request.profiles, {}, {}, (), request.tuned_on), 0, 0.0, 0, {})

    def plan_on(*gpus: LocalGpu) -> PlanStage:
        monkeypatch.setattr("peagle.compiler.pipeline.plan_stages.inspect_machine", lambda: Machine(gpus))
        source = PlanSource(tmp_path / "model.onnx", "a graph", 0)
        return build_plan(run, "target", source, platform, PlanOptions(), profiles("target", 1, DRAFTING, 64))

    monkeypatch.setattr("peagle.compiler.tensorrt.build_plan.build_plan", build)
    platform = BuildPlatform(backend, "11.4.0", ("sm_90",), TENSORRT, True)
    first, again = plan_on(OTHER, H100), plan_on(H100)
    assert (again.stage.reused, first.facts.plan.tuned_on) == (True, tuned_on)
    other = plan_on(H200)
    assert (other.stage.reused, len(asked)) == ((False, 2) if tuned_on else (True, 1))


def test_full_tensorrt_does_not_build_while_the_gpus_are_unknown(
    run: PipelineRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan would not record on which GPU its kernels were timed."""
    unknown = Machine(gpu_problem="the GPUs are unknown")
    monkeypatch.setattr("peagle.compiler.pipeline.plan_stages.inspect_machine", lambda: unknown)
    source = PlanSource(tmp_path / "model.onnx", "a graph", 0)
    platform = BuildPlatform("tensorrt", "11.4.0", ("sm_90",), TENSORRT, True)
    with pytest.raises(EnvironmentProblem, match="cannot build on this machine"):
        build_plan(run, "target", source, platform, PlanOptions(), profiles("target", 1, DRAFTING, 64))


def test_plans_are_tuned_for_one_row_all_rows_and_prompts_at_the_usual_k() -> None:
    emitted, positions = (1, 6, 19), (1024, 4096, 30_080)
    assert profiles("target", 8, Speculation(5, 18, None), 30_000) == (
        Profile("verify", (1, 8, 8), (1, 6, 19), emitted, positions),
        Profile("one", (1, 1, 1), (1, 6, 19), emitted, positions),
        Profile("prefill", (1, 1, 1), (1, 512, 512), emitted, positions),
    )
    assert {each.emitted for each in profiles("drafter", 8, Speculation(5, 18, None), 4096)} == {(2, 6, 19)}


def test_plans_for_one_row_have_no_profile_twice() -> None:
    assert [each.name for each in profiles("target", 1, Speculation(5, 18, None), 64)] == ["verify", "prefill"]
    assert profiles("target", 1, Speculation(5, 18, None), 64)[1].columns == (1, 64, 64)


def test_plan_of_an_autoregressive_drafter_has_passes_without_features() -> None:
    """They have one column and its draft, for all rows and for one; the first pass of a round has features for all."""
    for rows, names in ((8, ["verify", "one", "prefill"]), (1, ["verify", "prefill"])):
        made = profiles("drafter", rows, Speculation(5, 18, None), 4096, is_autoregressive=True)
        first, further = made[: len(names)], made[len(names) :]
        assert [each.name for each in first] == names
        assert all(each.aux_columns == each.columns for each in first)
        assert [replace(each, aux_columns=()) for each in first] == [
            *profiles("drafter", rows, Speculation(5, 18, None), 4096)
        ]
        assert [(each.name, each.rows) for each in further] == [
            ("further", (1, rows, rows)),
            *([("further one", (1, 1, 1))] if rows > 1 else []),
        ]
        sizes = {(each.columns, each.emitted, each.aux_columns) for each in further}
        assert sizes == {((1, 1, 1), (2, 2, 2), (0, 0, 0))}


@given(half=st.sampled_from(["target", "drafter"]), rows=st.integers(1, 64), max_k=st.integers(0, 32), data=st.data())
def test_every_profile_has_ordered_sizes_that_cover_all_requests(
    half: str, rows: int, max_k: int, data: st.DataObject
) -> None:
    k, length = data.draw(st.integers(0, max_k)), data.draw(st.integers(1, 9999))
    for profile in profiles(half, rows, Speculation(k, max_k, None), length):
        for sizes in (profile.rows, profile.columns, profile.emitted, profile.positions):
            assert 1 <= sizes[0] <= sizes[1] <= sizes[2]
        assert profile.emitted[2] == max(max_k, 1) + 1
        assert profile.positions[0] < profile.positions[2], "a size of one value would be a constant"
        assert profile.positions[2] >= length + 2 * max(max_k, 1), "the whole cache"
        if profile.name != "prefill":
            assert profile.columns[1:] == (k + 1, max_k + 1)
