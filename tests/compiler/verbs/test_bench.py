"""``bench``: its output and files, and its state after a stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from peagle.compiler.bench.measure import take_turns
from peagle.compiler.bench.workloads import WORKLOADS
from peagle.compiler.verbs.program import app
from peagle.plugins.errors import EnvironmentProblem
from tests.fixtures.commands import Run

FEW = ("--workload", "random", "--num-prompts", 2, "--max-tokens", 8, "--draft", "ngram", "--threads", 1)
STOPPED = """
import os, sys
from peagle.compiler.bench import run
from peagle.compiler.cli import main

number = int(sys.argv.pop(1))

def stopped(modes, groups, repeats, levels, advance, take_turns=run.take_turns):
    take_turns(modes, groups[:1], 1, levels, advance)
    os.kill(os.getpid(), number)

run.take_turns = stopped
main()
"""


def test_figures_are_printed_and_written(cli: Run, tiny_folder: Path, tmp_path: Path) -> None:
    out, html = tmp_path / "b.json", tmp_path / "b.html"
    done = cli("bench", tiny_folder, *FEW, "--out", out, "--html", html)
    assert done.code == 0, done.err
    assert "n-gram lookup, K = 4" in done.out
    assert f"wrote {out} and {html}" in done.err
    assert json.loads(out.read_text())["identical"] is True
    assert html.read_text().startswith("<!doctype html>")
    as_json = cli("bench", tiny_folder, *FEW, "--out", out, "--html", html, "--json")
    assert json.loads(as_json.out)["command"] == json.loads(out.read_text())["command"]


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--out", "not/there.json"), 3, "cannot write to not"),
        (("--html", "not/there.html"), 3, "cannot write to not"),
        (("--html", "notes.md"), 2, "notes.md exists and was not written by"),
        (("--out", "x" * 300), 2, "is not a valid file name"),
        (("--html", "x" * 300), 2, "is not a valid file name"),
        (("--out", "/dev/zero"), 2, "/dev/zero exists and was not written by"),
        (("--html", "/dev/zero"), 2, "/dev/zero exists and was not written by"),
        (("--out", "same", "--html", "./same"), 2, "--html and --out are the same file"),
    ],
)
def test_output_that_cannot_be_written_is_refused_before_the_measurement(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.md").write_text("mine")
    done = cli("bench", "no-engine", *FEW, *flags)
    assert (done.code, says in done.err) == (code, True), done.err
    assert [each.name for each in tmp_path.iterdir()] == ["notes.md"]
    assert Path("notes.md").read_text() == "mine"


@pytest.mark.parametrize("flag", ["--out", "--html"])
def test_no_output_is_put_into_an_engine(cli: Run, tiny_folder: Path, flag: str) -> None:
    before = sorted(tiny_folder.iterdir())
    done = cli("bench", tiny_folder, *FEW, flag, tiny_folder / "bench.json")
    assert (done.code, f"{flag} {tiny_folder / 'bench.json'} is inside the engine" in done.err) == (2, True), done.err
    assert sorted(tiny_folder.iterdir()) == before


@pytest.mark.parametrize(
    ("number", "code", "flags"),
    [(signal.SIGINT, 130, ()), (signal.SIGINT, 130, ("--json",)), (signal.SIGTERM, 143, ())],
)
def test_stop_after_a_turn_writes_the_finished_turns(
    tiny_folder: Path, tmp_path: Path, number: int, code: int, flags: tuple[str, ...]
) -> None:
    out, html = tmp_path / "b.json", tmp_path / "b.html"
    arguments = ["bench", tiny_folder, *FEW, "--out", out, "--html", html, *flags]
    command = [sys.executable, "-c", STOPPED, *map(str, [int(number), *arguments])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    content = json.loads(out.read_text())
    assert {each["turns"] for each in content["figures"]} == {1}
    assert "the measurement ended early: it was interrupted" in content["notes"]
    assert "it was interrupted" in html.read_text()
    assert f"wrote {out} and {html}" in done.stderr
    assert ("in the files named above" in done.stderr) is (number == signal.SIGINT)
    assert ("1 request at a time, 1 turns" in done.stdout) is (not flags)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b.html", "b.json"]


def test_stop_before_the_first_turn_writes_nothing(
    cli: Run, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("peagle.compiler.bench.run.take_turns", interrupted)
    done = cli("bench", tiny_folder, *FEW, "--out", tmp_path / "b.json")
    assert (done.code, done.out) == (130, "")
    assert "no file was written" in done.err
    assert [*tmp_path.iterdir()] == []


def test_error_after_a_turn_writes_the_finished_turns(
    cli: Run, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(modes: Any, groups: Any, repeats: Any, levels: Any, advance: Any) -> None:
        take_turns(modes, groups[:1], 1, levels, advance)
        raise EnvironmentProblem("cannot reach http://x", why="timed out")

    monkeypatch.setattr("peagle.compiler.bench.run.take_turns", failing)
    out, html = tmp_path / "b.json", tmp_path / "b.html"
    done = cli("bench", tiny_folder, *FEW, "--out", out, "--html", html)
    said = "the measurement ended early: cannot reach http://x"
    assert done.code == 3
    assert "1 request at a time, 1 turns" in done.out
    assert said in done.out
    assert "error: cannot reach http://x" in done.err
    content = json.loads(out.read_text())
    assert {each["turns"] for each in content["figures"]} == {1}
    assert any(note.startswith(said) for note in content["notes"])
    assert said in html.read_text()


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_figures_are_printed_if_a_file_cannot_be_written_any_more(
    cli: Run, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    def foreign(*arguments: Any) -> None:
        take_turns(*arguments)
        out.write_text("mine")

    monkeypatch.setattr("peagle.compiler.bench.run.take_turns", foreign)
    out, html = tmp_path / "b.json", tmp_path / "b.html"
    done = cli("bench", tiny_folder, *FEW, "--out", out, "--html", html, *flags)
    assert done.code == 2
    assert "was not written by" in done.err
    assert "wrote" not in done.err
    assert "n-gram lookup, K = 4" in done.out
    assert out.read_text() == "mine"
    assert html.read_text().startswith("<!doctype html>")


def test_error_before_the_first_turn_writes_nothing(
    cli: Run, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise EnvironmentProblem("cannot reach http://x")

    monkeypatch.setattr("peagle.compiler.bench.run.take_turns", failing)
    done = cli("bench", tiny_folder, *FEW, "--out", tmp_path / "b.json")
    assert (done.code, done.out) == (3, "")
    assert [*tmp_path.iterdir()] == []


def test_foreign_file_is_refused_before_anything_runs(cli: Run, tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    done = cli("bench", tiny_folder, *FEW, "--out", tmp_path / "notes.json")
    assert (done.code, done.out) == (2, "")
    assert "was not written by" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--concurrency", "1,x"], "--concurrency '1,x' is not a list of numbers"),
        (["--temperature", "0,x"], "--temperature '0,x' is not a list of numbers"),
        (["--temperature", ""], "--temperature '' is not a list of numbers"),
        (["--temperature", "0,,1"], "--temperature '0,,1' is not a list of numbers"),
        (["--temperature", "0,nan"], "--temperature must be a finite number of 0 or more, not nan"),
        (["--temperature", "0.8,0.80"], "--temperature has the value 0.8 twice"),
        (["--num-speculative-tokens", "2,x"], "--num-speculative-tokens x is not valid"),
        (["--draft", "oracle"], "none of the engines supports this draft method"),
    ],
)
def test_wrong_lists_are_refused(cli: Run, tiny_folder: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    done = cli("bench", tiny_folder, "--out", tmp_path / "b.json", *arguments)
    assert done.code == 2
    assert said in done.err


def test_help_names_every_workload(cli: Run) -> None:
    text = cli("bench", "--help").out
    assert all(name in text for name in WORKLOADS)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("option", "typed", "completed"),
    [("workload", "hum", ["humaneval"]), ("draft", "ngram,eag", ["ngram,eagle3"]), ("draft", "no", [])],
)
def test_workloads_and_draft_methods_are_completed(option: str, typed: str, completed: list[str]) -> None:
    program: Any = typer.main.get_command(app)
    (param,) = [each for each in program.commands["bench"].params if each.name == option]
    assert [each.value for each in param.shell_complete(typer.Context(program), typed)] == completed
