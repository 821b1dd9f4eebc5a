"""Standard streams that are closed, full or not read: every command ends in the same way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.commands import Run

PROGRAM = f"{sys.executable} -c 'from peagle.compiler.cli import main; main()'"


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``script``, in which PROGRAM is the program."""
    command = ["bash", "-c", f"set -o pipefail; {script.replace('PROGRAM', PROGRAM)}"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | environment, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("verb", ["models", "--help", "--version", "inspect ENGINE --json"])
def test_a_closed_pipe_is_not_an_error(verb: str, demo_engine: Path) -> None:
    done = shell(f"PROGRAM {verb.replace('ENGINE', str(demo_engine))} | true")
    assert (done.returncode, done.stderr) == (0, "")


def test_run_with_closed_reader_stops_generating(demo_engine: Path) -> None:
    done = shell(f"PROGRAM run {demo_engine} --prompt 'x =' --max-tokens 1500 --ignore-eos --stats | head -c 1")
    assert (done.returncode, done.stderr) == (0, "")


def test_verb_with_closed_reader_keeps_its_exit_code(engine: Path) -> None:
    (engine / "tokenizer.json").write_text("{}")
    done = shell(f"PROGRAM inspect {engine} | true")
    assert done.returncode == 3
    assert "tokenizer.json" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("verb", ["models", "models --json", "--help", "run ENGINE --prompt 'x =' --max-tokens 4"])
def test_output_that_cannot_be_written_is_the_machines_problem(verb: str, demo_engine: Path) -> None:
    done = shell(f"PROGRAM {verb.replace('ENGINE', str(demo_engine))} > /dev/full")
    assert done.returncode == 3, done.stderr
    assert "cannot write to standard output" in done.stderr
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") <= 3


def test_notes_that_cannot_be_written_are_lost(cli: Run, demo_engine: Path) -> None:
    run = f"PROGRAM run {demo_engine} --prompt 'def f(' --max-tokens 4"
    plain = cli("run", demo_engine, "--prompt", "def f(", "--max-tokens", 4)
    for where in ("2>&-", "2>/dev/full"):
        done = shell(f"{run} --stats {where}")
        assert (done.returncode, done.stdout, done.stderr) == (0, plain.out, "")
    assert shell("PROGRAM bild 2>&-").returncode == 2


def test_a_closed_output_is_the_null_device(tmp_path: Path, demo_engine: Path) -> None:
    done = shell(f"PROGRAM run {demo_engine} --prompt 'def f(' --max-tokens 4 --stats >&-")
    assert done.returncode == 0
    assert "decoding" in done.stderr
    assert shell("PROGRAM models >&- 2>&-").returncode == 0
    assert shell("PROGRAM bild >&- 2>&-").returncode == 2


def test_a_closed_input_has_no_prompt(demo_engine: Path) -> None:
    done = shell(f"PROGRAM run {demo_engine} <&-")
    assert done.returncode == 2
    assert "prompt" in done.stderr


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """The first opened file would become descriptor 2, and receive the output of libraries."""
    code = "from peagle.compiler.console import streams; streams.prepare(); print(open('/dev/null').fileno())"
    done = shell(f'{sys.executable} -c "{code}" <&- 2>&-')
    assert int(done.stdout) > 2


def test_unencodable_characters_are_escaped() -> None:
    code = "from peagle.compiler.console import streams; streams.prepare(); print('\\u4f60', 'caf\\u00e9')"
    done = shell(f'{sys.executable} -c "{code}"', PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "\\u4f60 caf\\xe9\n")


def test_json_on_a_pipe_is_whole() -> None:
    assert json.loads(shell("PROGRAM models --json | cat").stdout)
