"""Long work reports progress at the requested verbosity, and never on standard output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from peagle.compiler.console.progress import Progress
from peagle.compiler.request.request import CompileRequest
from peagle.compiler.resources import dry_run, page
from tests.fixtures.commands import Run

LINE = re.compile(r"^(.+) \.\.\. \d+\.\d s$", re.M)


@pytest.mark.parametrize("verb", ["build", "export", "quantize", "verify"])
def test_every_long_verb_has_verbosity_flags(cli: Run, verb: str) -> None:
    text = cli(verb, "--help").out
    assert all(flag in text for flag in ("--quiet", "--verbose", "--log"))


def test_each_phase_of_a_build_has_a_line_with_its_time(cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    build = ("build", "demo", "--num-speculative-tokens", 4, "--out", tmp_path / "engine", "--json")
    done = cli(*build)
    report = json.loads(done.out)
    assert {phase["phase"] for phase in report["phases"]} <= {*LINE.findall(done.err), "read", "room", "hash"}
    assert {"read checkpoints", "hash the checkpoints", "check the copied files"} <= set(LINE.findall(done.err))
    assert cli(*build, "--quiet").err == ""
    said = cli(*build, "--verbose").err
    assert "trace-target: reused from" in said
    assert len(LINE.findall(said)) == len(LINE.findall(done.err))


def test_log_contains_a_build(cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = cli("build", "demo", "--num-speculative-tokens", 11, "--out", tmp_path / "engine", "--quiet", "--log", log)
    assert done.code == 0
    content = log.read_text()
    (warning,) = done.err.splitlines()
    for text in ("trace target begins", "trace-target: reused from", "torch 2", warning):
        assert text in content, text


def test_a_failed_build_is_in_its_log(cli: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert cli("build", tmp_path, "--draft", tmp_path, "--out", tmp_path / "engine", "--log", log).code == 5
    assert "error: " in log.read_text()


@pytest.mark.parametrize("verb", ["build", "export"])
def test_a_dry_run_speaks_too(cli: Run, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def estimate(_: CompileRequest, progress: Progress) -> None:
        with progress.step("make the estimate"):
            pass

    monkeypatch.setattr(dry_run, f"estimate_{verb}", estimate)
    monkeypatch.setattr(page, "render", lambda _: "the estimate")
    done = cli(verb, "demo", "--dry-run")
    assert done.out == "the estimate\n"
    assert LINE.findall(done.err) == ["make the estimate"]


def test_verify_speaks(cli: Run, engine: Path) -> None:
    done = cli("verify", engine, "--prompts", 1, "--max-tokens", 4, "--json")
    assert json.loads(done.out)["passed"]
    assert {"check the files", "compare speculation on and off"} <= set(LINE.findall(done.err))


def test_quiet_and_verbose_contradict_each_other(cli: Run) -> None:
    done = cli("build", "demo", "--quiet", "--verbose")
    assert done.code == 2
    assert "cannot be combined" in done.err
