"""``run --profile``: the table on standard error and the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.compiler.verbs.profile_file import profile_table
from peagle.engines.backends.profiling import EngineProfile, PassTimes
from tests.fixtures.commands import Run


def test_a_run_prints_a_time_profile(cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    for _ in range(2):  # an earlier profile is replaced
        done = cli("run", demo_engine, "--prompt", "def f(", "--max-tokens", 6, "--ignore-eos", "--profile", file)
        assert done.code == 0, done.err
    content = json.loads(file.read_text())
    assert (content["engine"], content["tokens"]) == (str(demo_engine), 6)
    rounds = content["phases"]["round"]["count"]
    assert 1 <= rounds <= 5
    assert f"round ({rounds} times)" in done.err
    assert {(each["phase"], each["half"]) for each in content["passes"]} >= {("prefill", "target"), ("round", "target")}
    assert "round (" not in done.out


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", "{}"])
def test_other_files_are_not_replaced(text: str, cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text(text)
    done = cli("run", demo_engine, "--prompt", "x", "--profile", file)
    assert done.code == 2
    assert f"{file} exists and is not a profile" in done.err
    assert file.read_text() == text


def test_no_profile_is_put_into_an_engine(cli: Run, demo_engine: Path) -> None:
    done = cli("run", demo_engine, "--prompt", "x", "--profile", demo_engine / "profile.json")
    assert (done.code, "is inside the engine" in done.err) == (2, True), done.err
    assert not (demo_engine / "profile.json").exists()


def test_file_that_cannot_be_written_is_refused_before_the_run(cli: Run, tmp_path: Path) -> None:
    done = cli("run", "no-engine", "--prompt", "x", "--profile", tmp_path / "not" / "there.json")
    assert (done.code, f"cannot write to {tmp_path / 'not'}" in done.err) == (3, True), done.err


def test_the_table_divides_a_phase_completely() -> None:
    passes = PassTimes("round", "target")
    passes.add(0.006, [(f"n{i}", f"Op{i}", 0.5) for i in range(10)])
    passes.add(0.006, [(f"n{i}", f"Op{i}", 0.5) for i in range(10)])
    lines = [line.split() for line in profile_table(EngineProfile({"round": [0.008, 0.008]}, (passes,))).splitlines()]
    assert lines[1][:4] == ["round", "(2", "times)", "8.000"]
    assert lines[2] == ["target", "6.000", "ms", "75%"]
    assert ["Op3", "0.500", "ms", "6%", "1", "layers"] in lines
    assert ["other", "layers", "1.000", "ms", "12%", "2", "layers"] in lines
    assert ["between", "layers", "1.000", "ms", "12%"] in lines
    assert lines[-1] == ["outside", "of", "passes", "2.000", "ms", "25%"]
