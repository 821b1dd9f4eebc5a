"""Builds of realistic width stay within the memory and time that the benchmark allows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "aot_builds.py"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["qwen3-coder-30b-layer", "gpt-oss-20b-layer", "qwen3-coder-30b-tied"])
def test_full_width_build_stays_within_limits(case: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    done = subprocess.run([sys.executable, str(BENCHMARK), case], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
