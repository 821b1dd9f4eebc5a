"""The cost of a pass: which bytes and operations count, and the lower bound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.bench.measure import Level, ModeTurn, TimedAnswer
from peagle.compiler.bench.modes import DecodingMode
from peagle.compiler.bench.options import BenchOptions
from peagle.compiler.bench.passes import MemoryFloor, pass_figures
from peagle.compiler.bench.run import BenchRun
from peagle.compiler.hardware import cpu_probe
from peagle.engines.requests.results import Acceptance

MODES = [DecodingMode("plain", "plain", 0, "none", 0), DecodingMode("EAGLE-3, K = 2", "EAGLE-3", 1, "eagle3", 2)]
MEMORY = MemoryFloor(2e9, 2, ((4_000_000, 6_000_000), ()))


def turn(mode: DecodingMode, *passes: tuple[int, float]) -> dict[str, ModeTurn]:
    acceptance = Acceptance()
    for drafted, seconds in passes:
        acceptance.add_round(drafted, 0, (seconds, 0.0))
    return {mode.title: ModeTurn((TimedAnswer(0, "", (1, 2), 2, 0.1, 1.0, (), acceptance),), 1.1)}


def test_passes_of_all_modes_of_an_engine_are_put_together_by_columns() -> None:
    ngram = DecodingMode("n-gram", "n-gram", 0, "ngram", 1)
    turns = [turn(MODES[0], (0, 0.004), (0, 0.006)) | turn(ngram, (1, 0.010), (0, 0.005)) | turn(MODES[1], (2, 0.02))]
    one, two, three = pass_figures([Level(1, turns)], [*MODES, ngram], MEMORY)
    assert [(each.engine, each.columns, each.passes) for each in (one, two, three)] == [(0, 1, 3), (0, 2, 1), (1, 3, 1)]
    assert (one.milliseconds.median, two.over_one) == (5, 2)
    assert (one.floor, two.floor) == (2, 3)
    assert (one.share_of_floor, two.share_of_floor) == (0.4, 0.3)
    assert (three.over_one, three.floor, three.share_of_floor) == (None, None, None)


def test_passes_that_requests_share_are_not_those_of_one_request() -> None:
    turns = [turn(MODES[0], (0, 0.004))]
    assert pass_figures([Level(2, turns)], MODES) == []
    assert pass_figures([Level(1, turns), Level(2, turns)], MODES)[0].passes == 1


def test_passes_of_several_temperatures_are_apart() -> None:
    levels = [Level(1, [turn(MODES[0], (0, 0.004))]), Level(1, [turn(MODES[0], (0, 0.007))], 0.8)]
    found = pass_figures(levels, MODES, MEMORY)
    assert [(each.temperature, each.milliseconds.median) for each in found] == [(0.0, 4), (0.8, 7)]
    assert [each.temperature for each in pass_figures(levels[1:], MODES)] == [None]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(1e-4, 1e-1)), min_size=1, max_size=30))
def test_every_timed_round_is_one_pass(passes: list[tuple[int, float]]) -> None:
    found = pass_figures([Level(1, [turn(MODES[0], *passes)])], MODES)
    assert sum(each.passes for each in found) == len(passes)
    assert [each.columns for each in found] == sorted({drafted + 1 for drafted, _ in passes})


def test_engine_tells_the_bytes_of_its_passes(demo_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_probe, "_SECONDS", 0.0)
    told = json.loads((demo_engine / "build_report.json").read_text())["pass_weight_bytes"]
    assert {*told} == {told[0]}  # no experts: every pass reads all weights
    stored = (demo_engine / "target" / "model.onnx.data").stat().st_size
    assert 0.8 * stored < told[0] <= stored
    result = BenchRun(BenchOptions(engines=(demo_engine,), num_prompts=2, max_tokens=8, threads=1)).start()
    one = result.passes[0]
    assert one.columns == 1
    assert one.floor is not None
    words = dict(result.origin)["memory"]
    assert "read by 1 thread; a plain pass reads" in words
    assert f"which takes at least {one.floor:.2f} ms" in words
    assert result.as_json()["passes"][0]["share_of_floor"] == pytest.approx(one.share_of_floor, abs=1e-6)


def test_without_the_bytes_of_any_engine_nothing_is_measured(tmp_path: Path, demo_engine: Path) -> None:
    from peagle.engines.folder.manifest import Manifest

    for content in ("", "[]", '{"pass_weight_bytes": 3}', "{}"):
        (tmp_path / "build_report.json").write_text(content)
        assert MemoryFloor.measure([tmp_path], [Manifest.read(demo_engine)], 1) is None
