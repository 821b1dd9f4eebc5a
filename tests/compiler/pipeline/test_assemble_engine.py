"""Plans are rebuilt and replaced in the unfinished engine if another K is faster than theirs.

No plan runs here, so what is measured and checked is given; the files, the manifest and the report are real.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.pipeline import assemble_engine
from peagle.compiler.pipeline.assemble_engine import BuildResult, EnginePieces, assemble
from peagle.compiler.pipeline.choose_k import KChoice, Rate
from peagle.compiler.pipeline.graph_account import GraphAccount
from peagle.compiler.pipeline.plan_stages import PLAN, Plans, PlanStage, PluginLibraryStage, profiles
from peagle.compiler.pipeline.shared_steps import PipelineRun
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.request.build_plan import BuildPlan
from peagle.compiler.request.build_platform import BuildPlatform
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store.stages import StageStore
from peagle.compiler.tensorrt.worker_protocol import PlanFacts
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest
from peagle.engines.folder.records import BackendRecord, PlanRecord, PlanTensor, Speculation
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.errors import BuildError

DEPTH = 8
PLATFORM = BuildPlatform("tensorrt-rtx", "1.7", ("sm_120",), LOWERINGS["tensorrt"], runs_here=True)


def chosen(k: int, faster: float) -> KChoice:
    """K won, so many times as fast as the trained depth."""
    speeds = {0: 1.0, DEPTH: 2.0, k: 2.0 * faster}
    return KChoice(k, tuple(Rate(i, speeds.get(i, 1.0), 1.0, 1.0, 1.0, 1.0, 2) for i in range(DEPTH + 1)))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans whose numbers were checked, by what is in their files."""
    seen: list[str] = []

    def check(run: object, manifest: Manifest, folder: Path, output_stages: object, *, name: Path) -> bool:
        seen.append((folder / "target" / PLAN).read_text())
        return False

    monkeypatch.setattr(assemble_engine, "cached_check", check)
    return seen


def assembled(
    demo_engine: Path,
    folder: Path,
    choice: KChoice,
    monkeypatch: pytest.MonkeyPatch,
    asked: int | None = None,
    again: BuildError | None = None,
    tuned_on: str = "",
) -> BuildResult:
    """An engine whose plans are text that names the K they were made for."""
    monkeypatch.setattr(assemble_engine, "cached_choice", lambda *_, **__: (choice, False))
    monkeypatch.setattr(assemble_engine, "cached_batches", lambda *_, **__: ((), False))
    run, manifest = PipelineRun.begin(StageStore(folder / "store"), None), Manifest.read(demo_engine)
    kernels = run.store.run("kernels", [], lambda stage: (stage / "kernels.json").write_text("{}"))

    def make_plans(k: int) -> tuple[Plans, Manifest]:
        if again and k != DEPTH:
            raise again
        halves = {}
        for name in manifest.parts:
            stage = run.store.run(f"plan-{name}", [k], lambda stage: (stage / PLAN).write_text(f"for K = {k}"))
            names = (*manifest.parts[name].inputs, *manifest.parts[name].outputs)
            tensors = tuple(PlanTensor(each, "int32", (-1,)) for each in names)
            record = PlanRecord(profiles(name, 8, Speculation(k, DEPTH, None), 512), {}, {}, tensors, tuned_on)
            halves[name] = PlanStage(stage, PlanFacts(record, 9, 1.0, 1, {}, (f"{name} for {k}",)))
        parts = {
            name: replace(part, file=f"{name}/{PLAN}", plan=halves[name].facts.plan)
            for name, part in manifest.parts.items()
        }
        backend = BackendRecord("tensorrt-rtx", "tensorrt", {"tensorrt-rtx": "1.7"}, ("sm_120",))
        speculation = replace(manifest.speculation, num_speculative_tokens=k, measured=None)
        made = replace(
            manifest, target=parts["target"], drafter=parts["drafter"], backend=backend, speculation=speculation
        )
        return Plans(halves, kernels, PluginLibraryStage(None)), made

    plans, made = make_plans(DEPTH)
    pieces = EnginePieces(
        stages=plans.stages(),
        folders={name: name for name in manifest.parts},
        compiled=plans.compiled(),
        place_side_files=lambda assembly: None,
        account=GraphAccount({}),
        plans=plans,
        make_plans=make_plans,
    )
    plan = BuildPlan(
        command="build",
        request=BUILD.request(model="demo", out=folder / "engine"),
        platform=PLATFORM,
        recipe=RECIPES["fp16"],
        speculation=Speculation(asked or DEPTH, DEPTH, DEPTH, adapts=asked is None),
        max_seq_len=512,
        names={},
    )
    return assemble(run, plan, pieces, made, [], [], lambda *_: "{}")


def test_plans_are_rebuilt_for_a_clearly_faster_k(
    demo_engine: Path, tmp_path: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = assembled(demo_engine, tmp_path, chosen(3, 1.4), monkeypatch)
    manifest = Manifest.read(result.path)
    check_files(manifest.files, result.path)
    for name, part in manifest.parts.items():
        assert (result.path / name / PLAN).read_text() == "for K = 3"
        assert part.plan is not None
        assert {profile.emitted[1] for profile in part.plan.profiles} == {4}
    assert manifest.speculation.num_speculative_tokens == 3
    assert manifest.speculation.measured is not None
    assert checked == ["for K = 3"]
    assert result.report["warnings"] == ["target for 3", "drafter for 3"]
    assert json.loads((result.path / "build_report.json").read_text())["choose_k"]["k"] == 3


@pytest.mark.parametrize(("tuned_on", "version"), [("", 7), ("NVIDIA H200", 11)])
def test_an_engine_of_full_tensorrt_records_the_gpu_it_was_tuned_on(
    demo_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuned_on: str, version: int
) -> None:
    """Other engines keep the oldest format."""
    monkeypatch.setattr(assemble_engine, "cached_check", lambda *_, **__: False)
    result = assembled(demo_engine, tmp_path, chosen(DEPTH, 1.0), monkeypatch, tuned_on=tuned_on)
    manifest = Manifest.read(result.path)
    assert [part.plan and part.plan.tuned_on for part in manifest.parts.values()] == [tuned_on] * 2
    assert manifest.format_version == version


def test_plans_are_kept_for_a_small_gain_with_a_note(
    demo_engine: Path, tmp_path: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = assembled(demo_engine, tmp_path, chosen(5, 1.05), monkeypatch)
    manifest = Manifest.read(result.path)
    assert (result.path / "target" / PLAN).read_text() == "for K = 8"
    assert manifest.speculation.num_speculative_tokens == 5
    assert not checked
    said = "the plans are tuned for K = 8; K = 5 decoded 1.05x as fast, a gain too small to rebuild the plans"
    assert said in result.report["warnings"]


def test_plans_that_fail_to_rebuild_keep_the_first_with_a_note(
    demo_engine: Path, tmp_path: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = assembled(demo_engine, tmp_path, chosen(3, 1.4), monkeypatch, again=BuildError("the disk is full"))
    check_files(Manifest.read(result.path).files, result.path)
    assert (result.path / "target" / PLAN).read_text() == "for K = 8"
    assert result.manifest.speculation.num_speculative_tokens == 3
    said = "the plans are tuned for K = 8; K = 3 decoded 1.40x as fast, but the plans could not be rebuilt: the disk"
    assert [said in warning for warning in result.report["warnings"]] == [True, False, False]
    assert not checked


def test_plans_for_an_explicit_k_are_checked_and_kept(
    demo_engine: Path, tmp_path: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = assembled(demo_engine, tmp_path, chosen(3, 9.9), monkeypatch, asked=8)
    assert (result.path / "target" / PLAN).read_text() == "for K = 8"
    assert checked == ["for K = 8"]
