"""Every pass of an engine on ONNX Runtime, node by node."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime.profiled_session import ProfiledSession, _passes
from peagle.engines.backends.profiling import Profiler
from peagle.plugins.errors import EnvironmentProblem
from tests.engines.mixed_requests import PROMPTS

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize("k", [0, 3])
def test_a_profile_has_every_round_with_the_nodes_of_both_graphs(
    k: int, tiny_folder: Path, tiny_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = Engine.load(tiny_folder, threads=1, profile=True)
    (output,) = engine.generate([PROMPTS[0]], PARAMS, num_speculative_tokens=k)
    (expected,) = tiny_engine.generate([PROMPTS[0]], PARAMS, num_speculative_tokens=k)
    assert output.token_ids == expected.token_ids
    profile = engine.end_profile()
    rounds = output.acceptance.rounds + output.acceptance.undrafted
    assert {name: len(each) for name, each in profile.phases.items()} == {"prefill": 1, "round": rounds}
    found = {(each.phase, each.component): each for each in profile.passes}
    assert len(found["round", "target"].seconds) == rounds
    assert (("round", "drafter") in found) == (k > 0)
    for (phase, _), each in found.items():
        assert sum(each.seconds) <= sum(profile.phases[phase])
        kinds = {kind for kind, *_ in each.kinds()}
        assert kinds & {"MatMul", "FusedRegion"}
        spent = sum(sum(layer.milliseconds) for layer in each.layers.values())
        assert 0 < spent <= 1000 * sum(each.seconds) + 0.001 * len(each.layers)
        assert {len(layer.milliseconds) for layer in each.layers.values()} <= {*range(1, len(each.seconds) + 1)}
    assert [*tmp_path.iterdir()] == []  # ONNX Runtime's own files were removed


def test_an_engine_loaded_without_a_profile_has_none(tiny_folder: Path) -> None:
    profile = Engine.load(tiny_folder, threads=1).end_profile()
    assert (profile.phases, profile.passes) == ({}, ())


@pytest.mark.parametrize("is_there", [True, False])
def test_a_trace_that_a_full_disk_cuts_off_is_reported(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class CutOff:
        def __init__(self, prefix: str) -> None:
            self.path = Path(f"{prefix}.json")

        def end_profiling(self) -> str:
            if is_there:
                self.path.write_text('[{"cat": "Node", "na')
            return str(self.path)

    with pytest.raises(EnvironmentProblem, match="measured for the target are incomplete") as caught:
        ProfiledSession(CutOff, "target", Profiler()).end()
    assert "set TMPDIR" in caught.value.fix
    assert [*tmp_path.iterdir()] == []


def test_a_profile_without_a_folder_for_temporary_files_is_refused(no_temporary_folder: None) -> None:
    with pytest.raises(EnvironmentProblem, match="no folder for temporary files"):
        ProfiledSession(lambda _: pytest.fail("it opened the session first"), "target", Profiler())


def test_nodes_belong_to_the_run_that_ends_after_them() -> None:
    def node(name: str, microseconds: int) -> dict[str, object]:
        return {"cat": "Node", "name": f"{name}_kernel_time", "dur": microseconds, "args": {"op_name": "Add"}}

    run = {"cat": "Session", "name": "model_run", "dur": 9}
    load = {"cat": "Session", "name": "model_loading_uri", "dur": 9}
    assert [*_passes([load, node("a", 5), node("b", 7), run, node("a", 6), run, node("a", 1)])] == [
        [("a", "Add", 0.005), ("b", "Add", 0.007)],
        [("a", "Add", 0.006)],
    ]
