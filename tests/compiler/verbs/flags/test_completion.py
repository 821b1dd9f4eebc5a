"""Shell completion offers the possible values of an option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peagle.compiler.cli import run_cli

PROGRAM = str(Path(sys.executable).with_name("peagle-compile"))


def asked(line: str) -> dict[str, str]:
    """Return the environment in which bash asks for completions of the last word of a command line."""
    words = line.split(" ")
    return {"_PEAGLE_COMPILE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("peagle-compile qu", ["quantize"]),
        ("peagle-compile build --model qwen", ["qwen3-coder-30b", "qwen3-coder-30b-fp8"]),
        ("peagle-compile build --precision int", ["int8", "int4"]),
        ("peagle-compile build --backend tensorrt-", ["tensorrt-rtx"]),
        ("peagle-compile build --gpu rtx-4090,b2", ["rtx-4090,b200"]),
        ("peagle-compile export --for tensorrt-", ["tensorrt-sm100"]),
        ("peagle-compile build --experts d", ["dense"]),
        ("peagle-compile quantize --calib-method p", ["percentile"]),
    ],
)
def test_names_are_completed(
    capfd: pytest.CaptureFixture[str], line: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in asked(line).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:  # the program is not run
        run_cli([])
    assert ended.value.code == 0
    assert capfd.readouterr().out.split() == names


def test_the_program_completes_names() -> None:
    environment = os.environ | asked("peagle-compile build gpt-oss-2")
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gpt-oss-20b"]


def test_a_script_for_the_shell_is_shown() -> None:
    environment = os.environ | {"_PEAGLE_COMPILE_COMPLETE": "source_bash"}
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert "complete_bash" in done.stdout
    shown = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--install-completion" in shown
