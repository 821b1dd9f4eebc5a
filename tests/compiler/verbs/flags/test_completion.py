"""Shell completion offers the possible values of an option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).with_name("peagle-compile"))


def offered(line: str) -> list[str]:
    """Return bash's completions for the last word of a command line."""
    words = line.split(" ")
    asked = {"_PEAGLE_COMPILE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([PROGRAM], env=os.environ | asked, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("peagle-compile qu", ["quantize"]),
        ("peagle-compile build --model qwen", ["qwen3-coder-30b", "qwen3-coder-30b-fp8"]),
        ("peagle-compile build gpt-oss-2", ["gpt-oss-20b"]),
        ("peagle-compile build --precision int", ["int8", "int4"]),
        ("peagle-compile build --backend tensorrt-", ["tensorrt-rtx"]),
        ("peagle-compile build --gpu rtx-4090,b2", ["rtx-4090,b200"]),
        ("peagle-compile export --for tensorrt-", ["tensorrt-sm100"]),
        ("peagle-compile build --experts d", ["dense"]),
        ("peagle-compile quantize --calib-method p", ["percentile"]),
    ],
)
def test_names_are_completed(line: str, names: list[str]) -> None:
    assert offered(line) == names


def test_a_script_for_the_shell_is_shown() -> None:
    asked = os.environ | {"_PEAGLE_COMPILE_COMPLETE": "source_bash"}
    done = subprocess.run([PROGRAM], env=asked, capture_output=True, text=True, check=True)
    assert "complete_bash" in done.stdout
    shown = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--install-completion" in shown
