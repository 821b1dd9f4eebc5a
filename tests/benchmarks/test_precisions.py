"""The precision benchmark builds, measures and reports its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "precisions.py"


@pytest.mark.slow
def test_demo_engines_take_turns_and_compare_with_the_first(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "demo", "--kinds", "fp32", "int4+head", "--rounds", "2", "--tokens", "8"]
    done = subprocess.run([*command, "--json", str(tmp_path / "out.json")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "int4+head" in done.stdout
    wide, narrow = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (wide["ratio"], wide["kind"]) == (1, "fp32")
    assert narrow["bytes"] < wide["bytes"] / 3
    assert narrow["tokens_per_second"] > 0
