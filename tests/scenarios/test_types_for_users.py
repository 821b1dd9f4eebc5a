"""Type checkers find the types of ``peagle`` in an editable installation, and report a caller's mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.begins_first

SCRIPT = """
from pathlib import Path

from peagle import build, verify
from peagle.engines import Engine, EnvironmentProblem, SamplingParams, UsageError

try:
    with Engine.load("demo-engine") as engine:
        (output,) = engine.generate(["def add("], SamplingParams(max_tokens=4))
        text: str = output.text
        number: int = output.text  # a mistake
    built = build("demo", out=Path("demo-engine"), exclude=["layers.0.*"], max_seq_len=64)
    folder: Path = built.path
    passed: bool = verify(built.path, only="text").passed
    build("demo", max_seq_len="64")  # a mistake
    build("demo", max_sequence_length=64)  # a mistake
except (EnvironmentProblem, UsageError) as error:
    fix: str = error.fix
"""
# The libraries below us have no mistakes to find here, and reading their types takes most of the time.
CONFIGURATION = """
[mypy]
strict = true
[mypy-torch.*,transformers.*,onnx.*,onnx_ir.*,onnxscript.*,numpy.*,huggingface_hub.*,rich.*,pydantic.*,anyio.*,jinja2.*]
follow_imports = skip
"""
MISTAKES = [line for line, text in enumerate(SCRIPT.splitlines(), 1) if "# a mistake" in text]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A user's program with three mistakes, in a folder without any configuration."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_mypy_finds_the_mistakes(script: Path) -> None:
    (script.parent / "mypy.ini").write_text(CONFIGURATION)
    command = [sys.executable, "-m", "mypy", "--cache-dir=/dev/null", script.name]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.split(": ")[0] for line in found] == [f"script.py:{line}" for line in MISTAKES], (
        done.stdout + done.stderr
    )


@pytest.mark.slow
def test_pyright_finds_the_mistakes(script: Path) -> None:
    """The build of pyright that brings its own runtime, in an environment of its own."""
    environment = script.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    install = [environment / "bin" / "python", "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    done = subprocess.run([*install, "basedpyright"], capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
        pytest.skip(f"there is no package index: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    command = [environment / "bin" / "basedpyright", "--level", "error", "--outputjson"]
    command += ["--pythonpath", sys.executable, script]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [1 + each["range"]["start"]["line"] for each in found] == MISTAKES, done.stdout + done.stderr
